//go:build !faultinject

package program

func forceCollections() {}
