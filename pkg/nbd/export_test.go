// SPDX-License-Identifier: Apache-2.0

package nbd

import "time"

// SetCloseTimeout changes how long the server waits for clients that do not accept their last
// replies. There must be no clients.
func (s *Server) SetCloseTimeout(timeout time.Duration) { s.closeTimeout = timeout }
