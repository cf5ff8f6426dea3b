// SPDX-License-Identifier: Apache-2.0

// Package docs holds the documents that the daemons serve themselves.
package docs

import _ "embed" // of what follows

// OpenAPIOfRelay and OpenAPIOfTarget describe the admin listeners.
var (
	//go:embed openapi-relay.json
	OpenAPIOfRelay []byte
	//go:embed openapi-target.json
	OpenAPIOfTarget []byte
)
