// SPDX-License-Identifier: Apache-2.0

// Package kubernetes checks the Helm chart in deploy/kubernetes with Helm itself and with the types
// of the Kubernetes API.
package kubernetes
