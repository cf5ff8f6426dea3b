//go:build !complete && !soak

package testkit

const isComplete = false
