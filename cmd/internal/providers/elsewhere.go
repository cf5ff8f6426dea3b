// SPDX-License-Identifier: Apache-2.0

package providers

import (
	"fmt"
	"os"

	"github.com/zc-relay/zc-relay/internal/files"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// CheckDirectory returns an error if a server cannot have the directory of the emulated Comch that
// a user has named, because the directory around it does not exist.
func CheckDirectory(provider, directory string) error {
	if provider != DefaultComch || directory == "" || directory == emulated.DefaultDirectory() {
		return nil
	}
	return files.CheckParent(directory)
}

// Elsewhere says where else a server may be that a client has not found with these options, or
// returns "". The default directory of the emulated Comch depends on the user, so a client and a
// server of different users miss each other.
func Elsewhere(provider, directory string) string {
	if provider != DefaultComch || directory != "" {
		return ""
	}
	return elsewhereThan(emulated.DefaultDirectory(), os.Geteuid())
}

func elsewhereThan(directory string, user int) string {
	if directory == emulated.RootDirectory {
		return fmt.Sprintf("root looks in %s; what another user runs listens in a directory of "+
			"that user, which its log names: give it by --emulated-dir", directory)
	}
	return fmt.Sprintf("user %d looks in %s; what root runs listens in %s, as the packaged relay "+
		"does: give --emulated-dir %[3]s", user, directory, emulated.RootDirectory)
}
