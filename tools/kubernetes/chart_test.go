package kubernetes

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	manifest    = "../../deploy/kubernetes/relay.yaml"
)

var update = flag.Bool("update", false, "rewrite the plain manifest")

// render renders the chart as "helm template zc-relay" does.
func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	chart, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "zc-relay", Namespace: "storage", Revision: 1,
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
// fields are errors. ServiceMonitors, which are not of the core API, are returned as text.
func decode(t *testing.T, manifests string) (objects []object, monitors []string) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apps.AddToScheme, core.AddToScheme} {
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
			return objects, monitors
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(document, []byte("kind: ServiceMonitor")) {
			monitors = append(monitors, string(document))
			continue
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
		"rdmaResource": "rdma/hca",
		"tolerations":  []any{map[string]any{"key": "dpu", "operator": "Exists"}}},
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
		"relative path":  {"target": map[string]any{"dataHostPath": "data"}},
		"bad pull":       {"image": map[string]any{"pullPolicy": "Sometimes"}},
		"no grace":       {"terminationGracePeriodSeconds": 0},
		"bad device":     {"relay": map[string]any{"rdmaResource": "hca"}},
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
	objects, monitors := decode(t, text)
	if len(monitors) != 1 || !strings.Contains(monitors[0], "port: operations") {
		t.Errorf("ServiceMonitors: %v", monitors)
	}
	kinds := map[string]int{}
	for _, o := range objects {
		kinds[o.GetObjectKind().GroupVersionKind().Kind]++
		if set, ok := o.(*apps.DaemonSet); ok {
			checkDaemonSet(t, set)
		}
	}
	if kinds["DaemonSet"] != 2 || kinds["ConfigMap"] != 2 || kinds["Service"] != 2 {
		t.Errorf("the chart renders %v", kinds)
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
	for _, c := range pod.Containers {
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
	objects, _ := decode(t, text)
	checked := 0
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
			check := exec.Command("go", "run", "./cmd/"+program, "config", "check", file)
			check.Dir = "../.."
			if output, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", name, err, output)
			}
			checked++
		}
	}
	if checked != 2 {
		t.Errorf("%d configurations were checked, want 2", checked)
	}
}

func TestThePlainManifestIsThatOfTheChart(t *testing.T) {
	text, err := render(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	decode(t, text)
	text = "# The relay as plain manifests, for kubectl apply, with the chart's defaults.\n" +
		"# make kubernetes-manifest writes this file.\n" + text
	if *update {
		if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != text {
		t.Errorf("%s is not what the chart renders: make kubernetes-manifest", manifest)
	}
}
