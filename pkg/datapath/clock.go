package datapath

import "time"

// epoch is what nanotime counts from.
var epoch = time.Now()

// nanotime is a monotonic clock in nanoseconds. time.Since reads only the
// monotonic clock, which is half the price of time.Now.
func nanotime() int64 { return int64(time.Since(epoch)) }
