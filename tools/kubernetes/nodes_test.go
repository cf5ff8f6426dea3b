// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chartutil"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// threeDPUs returns the values of the example with a configuration for each node.
func threeDPUs(t *testing.T) map[string]any {
	t.Helper()
	values, err := chartutil.ReadValuesFile(filepath.Join(manifests, "three-dpus.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// node is a node with a pod of the relay: what the kubelet makes of a rendered chart.
type node struct {
	t         *testing.T
	name      string
	directory string // where the ConfigMap is mounted
	pod       core.PodSpec
}

// schedule renders the chart and puts a pod of the relay onto a node.
func schedule(t *testing.T, values map[string]any, name string) *node {
	t.Helper()
	text, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, name: name, directory: t.TempDir()}
	for _, o := range decode(t, text) {
		switch o := o.(type) {
		case *core.ConfigMap:
			for key, content := range o.Data {
				if err := os.WriteFile(filepath.Join(n.directory, key), []byte(content),
					0o600); err != nil {
					t.Fatal(err)
				}
			}
		case *apps.DaemonSet:
			n.pod = o.Spec.Template.Spec
		}
	}
	return n
}

// environment returns the variables of a container.
func (n *node) environment(c *core.Container) []string {
	n.t.Helper()
	var all []string
	for _, v := range c.Env {
		switch {
		case v.ValueFrom == nil:
			all = append(all, v.Name+"="+v.Value)
		case v.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			all = append(all, v.Name+"="+n.name)
		default:
			n.t.Fatalf("%s: the variable %s comes from %+v", c.Name, v.Name, v.ValueFrom)
		}
	}
	return all
}

// command returns the command line of a container: the kubelet replaces references to variables in
// it, and here also the mount.
func (n *node) command(c *core.Container) []string {
	n.t.Helper()
	line := append([]string(nil), c.Command...)
	for i := range line {
		for _, variable := range n.environment(c) {
			name, value, _ := strings.Cut(variable, "=")
			line[i] = strings.ReplaceAll(line[i], "$("+name+")", value)
		}
		line[i] = strings.ReplaceAll(line[i], "/etc/zc-relay/", n.directory+"/")
	}
	return line
}

// dump returns the configuration that the relay would use.
func (n *node) dump(programs string) map[string]any {
	n.t.Helper()
	daemon := &n.pod.Containers[0]
	line := n.command(daemon) // zc-relay run --config FILE …
	dump := exec.Command(filepath.Join(programs, line[0]),
		append([]string{"config", "dump"}, line[2:]...)...)
	dump.Env = n.environment(daemon)
	var stderr bytes.Buffer
	dump.Stderr = &stderr
	output, err := dump.Output()
	if err != nil {
		n.t.Fatalf("%s: %v: %v: %s", n.name, dump.Args, err, stderr.String())
	}
	var config map[string]any
	if err := yaml.Unmarshal(output, &config); err != nil {
		n.t.Fatal(err)
	}
	return config
}

// check runs the init container.
func (n *node) check() (message string, err error) {
	n.t.Helper()
	if len(n.pod.InitContainers) != 1 {
		n.t.Fatalf("the pod has %d init containers", len(n.pod.InitContainers))
	}
	container := &n.pod.InitContainers[0]
	line := n.command(container)
	shell := exec.Command(line[0], line[1:]...)
	shell.Env = append(os.Environ(), n.environment(container)...)
	output, err := shell.CombinedOutput()
	return string(output), err
}

func TestEachNodeHasItsOwnConfiguration(t *testing.T) {
	programs, values := daemons(t), threeDPUs(t)
	for name, want := range map[string]struct {
		representor, address, volume string
		channels                     int
		cpus                         string
	}{
		"dpu-1":                {"b1:00.0", "10.0.0.11", "disk-1", 1, "[4 5 6 7]"},
		"dpu-2":                {"3b:00.0", "10.0.0.12", "disk-2", 1, "[4 5 6 7]"},
		"dpu-3.rack-2.example": {"b1:00.0", "10.0.1.13", "disk-3", 2, "[2 3]"},
	} {
		n := schedule(t, values, name)
		if message, err := n.check(); err != nil {
			t.Errorf("%s has no configuration: %s", name, message)
		}
		config := n.dump(programs)
		channels, _ := config["channels"].([]any)
		if len(channels) != want.channels {
			t.Errorf("%s has the channels %v", name, channels)
			continue
		}
		channel := channels[0].(map[string]any)
		workers := config["workers"].(map[string]any)
		if channel["representor"] != want.representor || channel["rdma_address"] != want.address ||
			channel["volume"] != want.volume || fmt.Sprint(workers["cpus"]) != want.cpus ||
			workers["poll"] != "busy" {
			t.Errorf("%s: workers %v, channel %v", name, workers, channel)
		}
	}
}

func TestVariablesOverrideTheConfigurationOfANode(t *testing.T) {
	values := threeDPUs(t)
	relay := values["relay"].(map[string]any)
	relay["env"] = []any{map[string]any{"name": "ZC_RELAY__LOG__LEVEL", "value": "debug"}}
	config := schedule(t, values, "dpu-2").dump(daemons(t))
	if level := config["log"].(map[string]any)["level"]; level != "debug" {
		t.Errorf("the log level is %v", level)
	}
}

func TestANodeWithoutConfigurationSaysSo(t *testing.T) {
	n := schedule(t, threeDPUs(t), "dpu-4")
	message, err := n.check()
	if err == nil || !strings.Contains(message, "dpu-4 has no configuration") ||
		!strings.Contains(message, "relay.nodes.dpu-4") {
		t.Errorf("the pod says %q, %v", message, err)
	}
	if p := n.pod.InitContainers[0].TerminationMessagePolicy; p !=
		core.TerminationMessageFallbackToLogsOnError {
		t.Errorf("nobody sees the message: %s", p)
	}
}

// A change for one node is no reason to reload on the others.
func TestTheSidecarLooksAtTheConfigurationOfItsNode(t *testing.T) {
	script := schedule(t, threeDPUs(t), "dpu-1").pod.Containers[1].Command[2]
	if !strings.Contains(script, `cat /etc/zc-relay/"$NODE_NAME".yaml /etc/zc-relay-tls/*`) {
		t.Errorf("the sidecar looks at other files: %s", script)
	}
	if script := sidecar(t)[2]; !strings.Contains(script, "cat /etc/zc-relay/* ") {
		t.Errorf("without nodes, the sidecar looks at other files: %s", script)
	}
}
