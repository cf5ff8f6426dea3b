package program

import (
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// answerTo makes a program speak of itself by the name that it was called by:
// packages install some under longer names, which are also those of their
// completions and manual pages.
func answerTo(root *cobra.Command, path string) {
	_, arguments, _ := strings.Cut(root.Use, " ")
	root.Use = strings.TrimSpace(filepath.Base(path) + " " + arguments)
}
