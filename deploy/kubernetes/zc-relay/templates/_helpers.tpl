{{- define "zc-relay.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "zc-relay.selector" -}}
app.kubernetes.io/name: zc-relay
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "zc-relay.labels" -}}
{{ include "zc-relay.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "zc-relay.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The port of the listener for probes and metrics. */}}
{{- define "zc-relay.port" -}}
{{ regexFind "[0-9]+$" .config.operations.listen }}
{{- end }}

{{/*
Relabelings that give the targets on nodes the label target. A target that listens at all addresses
is known by that of its node. Needs node, a regular expression, and config.
*/}}
{{- define "zc-relay.targetLabel" -}}
{{- $listen := .config.listen | default dict -}}
{{- $port := $listen.port | default 7470 | toString -}}
{{- $address := $listen.address | default "0.0.0.0" -}}
{{- if has $address (list "0.0.0.0" "::") -}}
- sourceLabels: &source
    - __meta_kubernetes_service_label_app_kubernetes_io_component
    - __meta_kubernetes_pod_node_name
    - __meta_kubernetes_pod_ip
  regex: {{ printf "target;%s;([^:]+)" .node | quote }}
  targetLabel: target
  replacement: {{ printf "$1:%s" $port | quote }}
- sourceLabels: *source
  regex: {{ printf "target;%s;(.*:.*)" .node | quote }}
  targetLabel: target
  replacement: {{ printf "[$1]:%s" $port | quote }}
{{- else -}}
- sourceLabels:
    - __meta_kubernetes_service_label_app_kubernetes_io_component
    - __meta_kubernetes_pod_node_name
  regex: {{ printf "target;%s" .node | quote }}
  targetLabel: target
  replacement: {{ printf (ternary "[%s]:%s" "%s:%s" (contains ":" $address)) $address $port | quote }}
{{- end }}
{{- end }}

{{/* The seconds of a duration such as 1m30s, rounded up; a day for infinite. */}}
{{- define "zc-relay.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 -}}
{{- $sum := 0.0 -}}
{{- if eq . "infinite" }}{{ $sum = 86400.0 }}{{ end -}}
{{- range regexFindAll "[0-9.]+(h|ms|m|s)" . -1 -}}
{{- $unit := get $units (regexReplaceAll "[0-9.]+" . "") -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) $unit) -}}
{{- end -}}
{{- ceil $sum | int -}}
{{- end }}

{{/*
How long a pod may take to end: the longest drain of any node, and 75 s for the daemon, which ends
within a minute of its drain. Needs root, values, and drain, the default of shutdown.drain_timeout.
*/}}
{{- define "zc-relay.grace" -}}
{{- if .root.Values.terminationGracePeriodSeconds -}}
{{ .root.Values.terminationGracePeriodSeconds }}
{{- else -}}
{{- $longest := 0 -}}
{{- $drain := .drain -}}
{{- range prepend (values (.values.nodes | default dict)) (dict) -}}
{{- $config := mergeOverwrite (deepCopy $.values.config) . -}}
{{- $own := dig "shutdown" "drain_timeout" $drain $config | toString -}}
{{- $longest = max $longest (include "zc-relay.seconds" $own | int) -}}
{{- end -}}
{{ add $longest 75 }}
{{- end -}}
{{- end }}

{{/* Environment variables; the command line and others may refer to NODE_NAME: $(NODE_NAME). */}}
{{- define "zc-relay.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef: { fieldPath: spec.nodeName }
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "zc-relay.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/*
A DaemonSet with its ConfigMap and its Service, of a component: relay or target.
Needs root, component, values, command, drain (the default of shutdown.drain_timeout), mount (of the
configuration), volumes, and volumeMounts.
*/}}
{{- define "zc-relay.daemon" -}}
{{- $name := printf "%s-%s" (include "zc-relay.name" .root) .component -}}
{{- $nodes := .values.nodes -}}
{{- $file := printf "%s/%s.yaml" .mount (ternary "$(NODE_NAME)" .command (not (empty $nodes))) -}}
{{- $web := list -}}
{{- $scheme := "" -}}
{{- with .values.web -}}
{{- if .secret }}{{ $web = list "--web-config-file" "/etc/zc-relay-web/web.yaml" }}{{ end -}}
{{- if .https }}{{ $scheme = ", scheme: HTTPS" }}{{ end -}}
{{- end -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $name }}
  labels: {{- include "zc-relay.labels" . | nindent 4 }}
data:
  {{- if $nodes }}
  {{- range $node, $config := $nodes }}
  {{ $node }}.yaml: |
    {{- toYaml (mergeOverwrite (deepCopy $.values.config) $config) | nindent 4 }}
  {{- end }}
  {{- else }}
  {{ .command }}.yaml: |
    {{- toYaml .values.config | nindent 4 }}
  {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "zc-relay.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "zc-relay.selector" . | nindent 4 }}
  ports:
    - name: operations
      port: {{ include "zc-relay.port" .values }}
      targetPort: operations
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ $name }}
  labels: {{- include "zc-relay.labels" . | nindent 4 }}
spec:
  selector:
    matchLabels: {{- include "zc-relay.selector" . | nindent 6 }}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
  template:
    metadata:
      labels: {{- include "zc-relay.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      # RDMA devices and their addresses are those of the node.
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      terminationGracePeriodSeconds: {{ include "zc-relay.grace" . }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if $nodes }}
      initContainers:
        # Fails, and is retried, until the node has a configuration.
        - name: node
          image: {{ include "zc-relay.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command:
            - sh
            - -c
            - |
              [ ! -e "$0" ] || exit 0
              echo "The node $NODE_NAME has no configuration: add {{ .component }}.nodes.$NODE_NAME to the chart's values, or keep its labels from fitting {{ .component }}.nodeSelector" >&2
              exit 1
            - {{ $file | quote }}
          # kubectl describe pod then shows what it says.
          terminationMessagePolicy: FallbackToLogsOnError
          env: {{- include "zc-relay.env" .values | nindent 12 }}
          securityContext: {{- include "zc-relay.containerSecurity" . | nindent 12 }}
          resources:
            requests: { cpu: 1m, memory: 16Mi }
            limits: { memory: 64Mi }
          volumeMounts:
            - { name: config, mountPath: {{ .mount }}, readOnly: true }
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "zc-relay.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: {{ concat (list .command) .arguments (list "--config" $file "--admin-listen" (printf "unix:/run/%s/admin.sock" .command)) $web | toJson }}
          # kubectl describe pod then shows why the daemon has ended.
          terminationMessagePolicy: FallbackToLogsOnError
          env: {{- include "zc-relay.env" .values | nindent 12 }}
          ports:
            - name: operations
              containerPort: {{ include "zc-relay.port" .values }}
          startupProbe:
            httpGet: { path: /healthz, port: operations{{ $scheme }} }
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: { path: /healthz, port: operations{{ $scheme }} }
            timeoutSeconds: 5
          # A relay whose targets are down is not ready, but stays alive and reconnects.
          readinessProbe:
            httpGet: { path: /readyz, port: operations{{ $scheme }} }
            periodSeconds: 5
          securityContext: {{- include "zc-relay.containerSecurity" . | nindent 12 }}
          resources:
            {{- $limits := .values.resources.limits | default dict }}
            {{- with .values.rdmaResource }}
            {{- $limits = merge (dict . 1) $limits }}
            {{- end }}
            {{- with .values.resources.requests }}
            requests: {{- toYaml . | nindent 14 }}
            {{- end }}
            {{- with $limits }}
            limits: {{- toYaml . | nindent 14 }}
            {{- end }}
          volumeMounts: &mounts
            - { name: config, mountPath: {{ .mount }}, readOnly: true }
            - { name: run, mountPath: /run/{{ .command }} }
            {{- if .values.tlsSecret }}
            - { name: tls, mountPath: {{ .tlsMount }}, readOnly: true }
            {{- end }}
            {{- if $web }}
            - { name: web, mountPath: /etc/zc-relay-web, readOnly: true }
            {{- end }}
            {{- with .volumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        # Kubernetes replaces the files of a ConfigMap, but tells nobody.
        - name: reload
          image: {{ include "zc-relay.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command:
            - sh
            - -c
            - |
              trap 'exit 0' TERM
              files() { cat {{ ternary (printf "%s/\"$NODE_NAME\".yaml" .mount) (printf "%s/*" .mount) (not (empty $nodes)) }} {{ .tlsMount }}/*{{ if $web }} /etc/zc-relay-web/*{{ end }} 2>/dev/null | sha256sum; }
              former=$(files)
              while sleep 10 & wait $!; do
                now=$(files)
                [ "$now" = "$former" ] && continue
                {{ .command }} reload
                former=$now
              done
          env: {{- include "zc-relay.env" .values | nindent 12 }}
          securityContext: {{- include "zc-relay.containerSecurity" . | nindent 12 }}
          resources:
            requests: { cpu: 1m, memory: 16Mi }
            limits: { memory: 64Mi }
          volumeMounts: *mounts
      volumes:
        - name: config
          configMap:
            name: {{ $name }}
        - name: run
          emptyDir: {}
        {{- with .values.tlsSecret }}
        - name: tls
          secret:
            secretName: {{ . }}
            defaultMode: 0440
        {{- end }}
        {{- if $web }}
        - name: web
          secret:
            secretName: {{ .values.web.secret }}
            defaultMode: 0440
        {{- end }}
        {{- with .volumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end }}
