// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fakeGo stands for the go command: it "compiles" a simulation that crashes at seed 7 and fails at
// seed 9.
const fakeGo = `#!/bin/sh
while [ "$1" != -o ]; do shift; done
cat >"$2" <<'EOF'
#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    -seeds) seeds=$2 ;;
    -first) seed=$2 ;;
    -seed-file) file=$2 ;;
    esac
    shift
done
end=$((seed + seeds)) failed=0
while [ "$seed" -lt "$end" ]; do
    echo "$seed" >"$file"
    case $seed in
    7) echo 'fatal error: all goroutines are asleep - deadlock!'; exit 2 ;;
    9) failed=$((failed + 1)); echo '    simulation_test.go:77: seed 9: lost a write' ;;
    esac
    seed=$((seed + 1))
done
echo "    simulation_test.go:80: $seeds schedules, $failed failed, $((10 * seeds)) steps, 9s of virtual time, in 1s"
exit "$failed"
EOF
chmod +x "$2"
`

func TestTheScriptCountsCrashesAndGoesOnBehindThem(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(fakeGo), 0o700); err != nil {
		t.Fatal(err)
	}
	script := exec.Command("../../scripts/simulate.sh", "20")
	script.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	output, err := script.CombinedOutput()
	if err == nil {
		t.Error("the script succeeds")
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "simulation: 20 schedules,") || !strings.HasSuffix(last, " 2 failed") ||
		!strings.Contains(string(output), "the last seed that it began is 7") {
		t.Errorf("the script ends with %q:\n%s", last, output)
	}
}
