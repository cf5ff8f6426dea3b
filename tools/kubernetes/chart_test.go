// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bufio"
	"errors"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

const (
	chartFolder = "../../deploy/kubernetes/zc-relay"
	manifests   = "../../deploy/kubernetes"
)

var update = flag.Bool("update", false, "rewrite the plain manifests")

// render renders the chart as "helm template zc-relay" does.
func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	return renderAs(t, "zc-relay", values)
}

// renderAs renders the chart for a release.
func renderAs(t *testing.T, name string, values map[string]any) (string, error) {
	t.Helper()
	chart, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: name, Namespace: "storage", Revision: 1,
		IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			text.WriteString("---\n" + strings.TrimSpace(files[name]) + "\n")
		}
	}
	return text.String(), nil
}

// object is a Kubernetes object of any kind.
type object = runtime.Object

// decode decodes manifests as the API server does in strict mode: unknown, misspelt, and repeated
// fields are errors.
func decode(t *testing.T, manifests string) (objects []object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme,
		monitoring.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifests)))
	for {
		document, err := documents.Read()
		if err == io.EOF {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		objects = append(objects, decoded)
	}
}

// everything turns on all that the chart can render.
var everything = map[string]any{
	"image": map[string]any{"repository": "registry.example/zc-relay", "tag": "v1.2.3"},
	"relay": map[string]any{"tlsSecret": "relay-tls", "comchHostPath": "/var/lib/zc-relay/comch",
		"stateHostPath": "/var/lib/zc-relay/state",
		"rdmaResource":  "rdma/hca",
		"nodes":         map[string]any{"dpu-1": map[string]any{}},
		"env":           []any{map[string]any{"name": "ZC_RELAY__LOG__LEVEL", "value": "debug"}},
		"tolerations":   []any{map[string]any{"key": "dpu", "operator": "Exists"}}},
	"target": map[string]any{"enabled": true, "tlsSecret": "target-tls",
		"rdmaResource": "rdma/hca"},
	"imagePullSecrets": []any{map[string]any{"name": "pull"}},
	"serviceMonitor":   map[string]any{"enabled": true, "labels": map[string]any{"a": "b"}},
}

func TestHelmLints(t *testing.T) {
	for name, values := range map[string]map[string]any{"defaults": {}, "everything": everything} {
		result := lint.AllWithKubeVersion(chartFolder, values, "storage", nil)
		for _, m := range result.Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

func TestValuesAreChecked(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"unknown key": {"relay": map[string]any{"nodeselector": map[string]any{}}},
		"wrong type":  {"serviceMonitor": map[string]any{"enabled": "yes"}},
		"no probes": {"relay": map[string]any{"config": map[string]any{
			"operations": map[string]any{"listen": ""}}}},
		"relative path": {"target": map[string]any{"dataHostPath": "data"}},
		"bad pull":      {"image": map[string]any{"pullPolicy": "Sometimes"}},
		"no grace":      {"terminationGracePeriodSeconds": 0},
		"bad device":    {"relay": map[string]any{"rdmaResource": "hca"}},
		"node's port": {"relay": map[string]any{"nodes": map[string]any{"dpu-1": map[string]any{
			"operations": map[string]any{"listen": ":9471"}}}}},
		"node's name": {"relay": map[string]any{"nodes": map[string]any{"DPU_1": map[string]any{}}}},
		"no node":     {"target": map[string]any{"nodes": map[string]any{"node-1": nil}}},
		"node twice": {"relay": map[string]any{"env": []any{map[string]any{"name": "NODE_NAME",
			"value": "x"}}}},
		"monitor's unit": {"serviceMonitor": map[string]any{"interval": "15"}},
	} {
		if _, err := render(t, values); err == nil ||
			!strings.Contains(err.Error(), "values don't meet the specifications of the schema") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManifestsAreThoseOfTheAPI(t *testing.T) {
	text, err := render(t, everything)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	var services []*core.Service
	var monitor *monitoring.ServiceMonitor
	for _, o := range decode(t, text) {
		kinds[o.GetObjectKind().GroupVersionKind().Kind]++
		switch o := o.(type) {
		case *apps.DaemonSet:
			checkDaemonSet(t, o)
		case *core.Service:
			services = append(services, o)
		case *monitoring.ServiceMonitor:
			monitor = o
		}
	}
	want := map[string]int{"DaemonSet": 2, "ConfigMap": 2, "Service": 2, "ServiceMonitor": 1}
	if !maps.Equal(kinds, want) {
		t.Fatalf("the chart renders %v, want %v", kinds, want)
	}
	for _, service := range services {
		checkMonitor(t, monitor, service)
	}
}

// checkMonitor checks that a ServiceMonitor finds a service and a port of it.
func checkMonitor(t *testing.T, monitor *monitoring.ServiceMonitor, service *core.Service) {
	t.Helper()
	for label, value := range monitor.Spec.Selector.MatchLabels {
		if service.Labels[label] != value {
			t.Errorf("the ServiceMonitor selects %s=%s, %s has %q", label, value, service.Name,
				service.Labels[label])
		}
	}
	if len(monitor.Spec.Selector.MatchLabels) == 0 || len(monitor.Spec.Endpoints) != 1 ||
		monitor.Spec.Endpoints[0].Port != service.Spec.Ports[0].Name {
		t.Errorf("the ServiceMonitor scrapes %v, %s has %v", monitor.Spec, service.Name,
			service.Spec.Ports)
	}
}

// checkDaemonSet checks what the image and the daemons need, and what Pod Security's level
// "restricted" asks of containers. The level itself forbids the host's network.
func checkDaemonSet(t *testing.T, set *apps.DaemonSet) {
	t.Helper()
	pod := set.Spec.Template.Spec
	if s := pod.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *s.FSGroup != 65532 ||
		s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: the security context of the pod is %v", set.Name, s)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) {
			t.Errorf("%s: the security context of %s is %v", set.Name, c.Name, s)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s: %s mounts %s, which is no volume", set.Name, c.Name, m.Name)
			}
		}
	}
	daemon := pod.Containers[0]
	for _, probe := range []*core.Probe{
		daemon.StartupProbe, daemon.LivenessProbe, daemon.ReadinessProbe,
	} {
		if probe.HTTPGet.Port.StrVal != daemon.Ports[0].Name {
			t.Errorf("%s: a probe uses port %v", set.Name, probe.HTTPGet.Port)
		}
	}
	if n := daemon.Resources.Limits["rdma/hca"]; n.Value() != 1 {
		t.Errorf("%s: the pod gets %v RDMA devices", set.Name, n)
	}
	if _, memory := daemon.Resources.Limits[core.ResourceMemory]; !memory {
		t.Errorf("%s: the RDMA device displaces the other limits", set.Name)
	}
}

// The daemons themselves check the configurations in the ConfigMaps.
func TestConfigurationsAreValid(t *testing.T) {
	text, err := render(t, map[string]any{"target": map[string]any{"enabled": true}})
	if err != nil {
		t.Fatal(err)
	}
	programs, checked := daemons(t), 0
	objects := decode(t, text)
	for _, o := range objects {
		config, ok := o.(*core.ConfigMap)
		if !ok {
			continue
		}
		for name, content := range config.Data {
			program := map[string]string{"zc-relay.yaml": "zc-relay",
				"zc-relay-target.yaml": "target"}[name]
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			check := exec.Command(filepath.Join(programs, program), "config", "check", file)
			if output, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", name, err, output)
			}
			dump := exec.Command(filepath.Join(programs, program), "config", "dump", file)
			output, err := dump.Output()
			if err != nil {
				t.Fatal(err)
			}
			checkGrace(t, objects, config.Name, output)
			checked++
		}
	}
	if checked != 2 {
		t.Errorf("%d configurations were checked, want 2", checked)
	}
}

// checkGrace checks that the pods of a DaemonSet are not killed before the daemon ends, with the
// configuration that it uses.
func checkGrace(t *testing.T, objects []object, name string, dump []byte) {
	t.Helper()
	var used struct {
		Shutdown struct {
			DrainTimeout string `json:"drain_timeout"`
		}
	}
	if err := yaml.Unmarshal(dump, &used); err != nil {
		t.Fatal(err)
	}
	drain, err := time.ParseDuration(used.Shutdown.DrainTimeout)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if set, ok := o.(*apps.DaemonSet); ok && set.Name == name {
			grace := *set.Spec.Template.Spec.TerminationGracePeriodSeconds
			if want := drain + 75*time.Second; time.Duration(grace)*time.Second != want {
				t.Errorf("%s has %d s to end, and a drain of %v", name, grace, drain)
			}
			return
		}
	}
	t.Errorf("there is no DaemonSet %s", name)
}

// daemons returns the directory of the daemons: that of make check-kubernetes, or one with daemons
// that it builds.
func daemons(t *testing.T) string {
	t.Helper()
	directory := os.Getenv("ZC_RELAY_PROGRAMS")
	if directory == "" {
		directory = t.TempDir()
		build := exec.Command("go", "build", "-o", directory, "./cmd/zc-relay", "./cmd/target")
		build.Dir = "../.."
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", build, err, output)
		}
	}
	return directory
}

// A pod has nowhere else to put the sockets of the emulated Comch: its root is read-only.
func TestTheComchDirectoryIsKeptBesideOtherKeys(t *testing.T) {
	for name, c := range map[string]struct {
		comch map[string]any
		want  string
	}{
		"no key":      {nil, "/var/lib/zc-relay/comch"},
		"another key": {map[string]any{"wait": "never"}, "/var/lib/zc-relay/comch"},
		"a directory": {map[string]any{"directory": "/elsewhere"}, "/elsewhere"},
	} {
		config := map[string]any{}
		if c.comch != nil {
			config["comch"] = c.comch
		}
		text, err := render(t, map[string]any{"relay": map[string]any{"config": config}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var have struct{ Comch map[string]any }
		for _, o := range decode(t, text) {
			if config, ok := o.(*core.ConfigMap); ok {
				content := []byte(config.Data["zc-relay.yaml"])
				if err := yaml.Unmarshal(content, &have); err != nil {
					t.Fatal(err)
				}
			}
		}
		if have.Comch["directory"] != c.want || have.Comch["wait"] != c.comch["wait"] {
			t.Errorf("%s: the relay gets comch %v", name, have.Comch)
		}
	}
}

// The sidecar runs with a kubelet's way to replace files, a daemon that only notes how it was
// called, and a shorter pause.
func TestTheSidecarReloadsWhenAFileChanges(t *testing.T) {
	directory := t.TempDir()
	note := filepath.Join(directory, "notes")
	for name, script := range map[string]string{
		"sleep":    "echo slept >>" + note + "; exec /bin/sleep 0.01",
		"zc-relay": `echo "$@" >>` + note,
	} {
		file := filepath.Join(directory, name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(content string) {
		t.Helper()
		version := filepath.Join(directory, content)
		link := filepath.Join(directory, "link")
		if err := errors.Join(os.Mkdir(version, 0o700),
			os.WriteFile(filepath.Join(version, "zc-relay.yaml"), []byte(content), 0o600),
			os.Symlink(version, link),
			os.Rename(link, filepath.Join(directory, "etc"))); err != nil {
			t.Fatal(err)
		}
	}
	replace("first")
	command := sidecar(t)
	script := strings.ReplaceAll(command[2], "/etc/zc-relay/", filepath.Join(directory, "etc")+"/")
	shell := exec.Command(command[0], command[1], script)
	shell.Env = append(os.Environ(), "PATH="+directory+":"+os.Getenv("PATH"))
	shell.Stderr = os.Stderr
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	notes := func() []string {
		content, _ := os.ReadFile(note)
		return strings.Split(strings.TrimSpace(string(content)), "\n")
	}
	// pauses waits until the sidecar has looked at the files several times more.
	pauses := func() {
		t.Helper()
		count := len(notes()) + 5
		for deadline := time.Now().Add(time.Minute); len(notes()) < count; {
			if time.Now().After(deadline) {
				t.Fatalf("the sidecar did no more than %q", notes())
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	reloads := func() []string {
		return slices.DeleteFunc(notes(), func(s string) bool { return s == "slept" })
	}
	pauses()
	if r := reloads(); len(r) != 0 {
		t.Errorf("before a change, the sidecar called %q", r)
	}
	replace("second")
	pauses()
	want := []string{"reload"}
	if r := reloads(); !slices.Equal(r, want) {
		t.Errorf("after a change, the sidecar called %q, want %q", r, want)
	}
	if err := shell.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := shell.Wait(); err != nil {
		t.Errorf("at SIGTERM, the sidecar ended with %v", err)
	}
}

// sidecar returns the command of the relay's sidecar.
func sidecar(t *testing.T) []string {
	t.Helper()
	text, err := render(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range decode(t, text) {
		if set, ok := o.(*apps.DaemonSet); ok {
			return set.Spec.Template.Spec.Containers[1].Command
		}
	}
	t.Fatal("the chart renders no DaemonSet")
	return nil
}

func TestThePlainManifestsAreThoseOfTheChart(t *testing.T) {
	for file, c := range map[string]struct {
		values map[string]any
		what   string
	}{
		"relay.yaml":       {nil, "the chart's defaults"},
		"relay-nodes.yaml": {threeDPUs(t), "the values in three-dpus.yaml"},
	} {
		text, err := render(t, c.values)
		if err != nil {
			t.Fatal(err)
		}
		decode(t, text)
		text = "# The relay as plain manifests, for kubectl apply, with " + c.what + ".\n" +
			"# make kubernetes-manifest writes this file.\n" + text
		file = filepath.Join(manifests, file)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != text {
			t.Errorf("%s is not what the chart renders: make kubernetes-manifest", file)
		}
	}
}
