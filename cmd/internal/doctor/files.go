// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// admin checks that the daemon can listen for administrators.
func (m *machine) admin() []Finding {
	const check = "admin"
	if m.CheckAdmin == nil {
		return nil
	}
	setting := m.setting("operations.admin", "--admin-listen")
	path, isSocket := strings.CutPrefix(m.Admin, "unix:")
	err := m.CheckAdmin()
	switch {
	case err == nil:
		return []Finding{ok(check, m.Admin+" can be used")}
	case errors.Is(err, syscall.EADDRINUSE) && m.daemonRuns():
		return []Finding{ok(check, fmt.Sprintf("%s is in use, and %s runs", m.Admin, m.Unit))}
	case !isSocket:
		return []Finding{fail(check, err.Error(), fmt.Sprintf("correct %s: unix:PATH, or a loopback "+
			"address such as 127.0.0.1:9472 with a token in the file of %s", setting,
			m.setting("operations.admin_token_file", "--admin-token-file")))}
	}
	return []Finding{m.inDirectory(check, filepath.Dir(path), setting, err)}
}

// writable checks the directories in which the daemon creates files.
func (m *machine) writable() []Finding {
	const check = "directories"
	var findings []Finding
	for _, d := range m.Directories {
		if err := d.Check(d.Path); err != nil {
			findings = append(findings, m.inDirectory(check, d.Path, m.setting(d.Key, d.Flag),
				fmt.Errorf("%s: %w", d.Path, err)))
			continue
		}
		findings = append(findings, ok(check, d.Path+" can be written to"))
	}
	return findings
}

// inDirectory returns the finding that the daemon cannot create a file in a directory, which a
// setting names.
func (m *machine) inDirectory(check, directory, setting string, err error) Finding {
	owner := m.Unit
	if _, absent := user.Lookup(owner); absent != nil {
		owner = strconv.Itoa(os.Geteuid())
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && m.isRuntime(directory):
		return warn(check, err.Error(), fmt.Sprintf("the unit makes the directory: systemctl start %s; "+
			"to run without it: install -d -o %s %s", m.Unit, owner, m.RuntimeDirectory))
	case errors.Is(err, fs.ErrNotExist):
		return fail(check, err.Error(), fmt.Sprintf("install -d -o %s %s, or correct %s", owner,
			directory, setting))
	case errors.Is(err, fs.ErrPermission) && m.isOtherUser():
		return warn(check, err.Error(), m.asService())
	case errors.Is(err, fs.ErrPermission):
		return fail(check, err.Error(), fmt.Sprintf("give the daemon's user the right to write to it: "+
			"namei -l %s shows who has which; or correct %s", directory, setting))
	}
	return fail(check, err.Error(), "correct "+setting)
}

// isRuntime reports whether a directory is there only while the unit runs.
func (m *machine) isRuntime(directory string) bool {
	return m.RuntimeDirectory != "" && (directory == m.RuntimeDirectory ||
		strings.HasPrefix(directory, m.RuntimeDirectory+"/"))
}

// isOtherUser reports whether the service has a user, and it is not this one.
func (m *machine) isOtherUser() bool {
	service, err := user.Lookup(m.Unit)
	return err == nil && service.Uid != strconv.Itoa(os.Geteuid())
}

// asService is the command that checks as the user of the service.
func (m *machine) asService() string { return fmt.Sprintf("sudo -u %s %[1]s doctor", m.Unit) }
