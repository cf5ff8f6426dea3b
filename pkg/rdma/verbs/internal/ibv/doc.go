//go:build verbs

// Package ibv binds libibverbs and librdmacm: thin types over their objects,
// errors with symbolic names, and one crossing into C per batch on the data
// path. What the objects are used for is its importer's business.
//
// Objects do not count their users: whoever destroys one makes sure that
// nothing else uses it.
package ibv
