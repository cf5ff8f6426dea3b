//go:build !soak

package doca_test

const soak = false
