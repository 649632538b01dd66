{{- define "mainspring.name" -}}
{{- if contains "mainspring" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-mainspring" (.Release.Name | trunc 29 | trimSuffix "-") }}{{- end -}}
{{- end }}

{{- define "mainspring.selector" -}}
app.kubernetes.io/name: mainspring
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "mainspring.labels" -}}
{{ include "mainspring.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The addresses of a shard's controller and of those that stand by. The keys: root, shard. */}}
{{- define "mainspring.controllerAt" -}}
{{- $name := include "mainspring.name" .root -}}
{{- $addresses := list -}}
{{- range $other := until (int (add 1 .root.Values.controllers.standbys)) -}}
{{- $addresses = append $addresses (printf "tcp://%s-controller-%d.%s-controller.%s.svc:7300" $name (int (add $.shard $other)) $name $.root.Release.Namespace) -}}
{{- end -}}
{{ join "," $addresses }}
{{- end }}

{{/* What a shard's objects have behind their names: nothing for the first. */}}
{{- define "mainspring.ending" -}}
{{ if . }}-{{ . }}{{ end }}
{{- end }}

{{/* mainspring.toml, of what `configuration` says and the controllers, if there are several; else empty. */}}
{{- define "mainspring.configuration" -}}
{{- with .Values.configuration }}{{ . }}{{ end }}
{{- if gt (int .Values.controllers.count) 1 }}
[shards]
controllers = [
{{- range $shard := until (int .Values.controllers.count) }}
    {{ include "mainspring.controllerAt" (dict "root" $ "shard" $shard) | quote }},
{{- end }}
]
{{ end }}
{{- end }}

{{/* The service account of the controllers, of which one leads. */}}
{{- define "mainspring.account" -}}
{{ .Values.serviceAccount | default (printf "%s-controller" (include "mainspring.name" .)) }}
{{- end }}

{{/* Of a pod's spec, what all processes have alike. The keys: root, component, realtime, leased. */}}
{{- define "mainspring.pod" -}}
{{- $values := .root.Values }}
automountServiceAccountToken: {{ .leased | default false }}
{{- with (.leased | default false | ternary (include "mainspring.account" .root) $values.serviceAccount) }}
serviceAccountName: {{ . }}
{{- end }}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ add $values.drainSeconds 5 (.settings.lameDuckSeconds | default 0) }}
{{- with $values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: {{ not .realtime }}
  runAsUser: {{ .realtime | ternary 0 10001 }}
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a container, what all processes have alike. The keys: root, settings, realtime. */}}
{{- define "mainspring.container" -}}
{{- $image := .root.Values.image }}
name: mainspring
image: {{ printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- if .realtime }}
    add: [SYS_NICE, IPC_LOCK]
    {{- end }}
env:
  - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: HOME, value: /tmp}
{{- end }}

{{/* The arguments that all processes have alike. */}}
{{- define "mainspring.arguments" -}}
{{- if and .root.Values.security.insecure (has .role (list "gateway" "console")) }}
- --insecure
{{- end }}
{{- if get .root.Values.security.keys .role }}
- --keys=/etc/mainspring/keys
{{- end }}
{{- if include "mainspring.configuration" .root }}
- --config=/etc/mainspring/configuration/mainspring.toml
{{- end }}
- --log-level={{ .root.Values.logLevel }}
- --log-format=json
{{- end }}

{{- define "mainspring.mounts" -}}
{{- if get .root.Values.security.keys .role }}
- {name: keys, mountPath: /etc/mainspring/keys, readOnly: true}
{{- end }}
{{- if and .root.Values.security.tls (has .role (list "gateway" "console")) }}
- {name: tls, mountPath: /etc/mainspring/tls, readOnly: true}
{{- end }}
{{- if and .root.Values.security.curve (eq .role "gateway") }}
- {name: curve, mountPath: /etc/mainspring/curve, readOnly: true}
{{- end }}
{{- if include "mainspring.configuration" .root }}
- {name: configuration, mountPath: /etc/mainspring/configuration, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "mainspring.volumes" -}}
{{- with get .root.Values.security.keys .role }}
- name: keys
  secret: {secretName: {{ . }}, defaultMode: 0400}
{{- end }}
{{- if and .root.Values.security.tls (has .role (list "gateway" "console")) }}
- name: tls
  secret: {secretName: {{ .root.Values.security.tls }}, defaultMode: 0400}
{{- end }}
{{- if and .root.Values.security.curve (eq .role "gateway") }}
- name: curve
  secret: {secretName: {{ .root.Values.security.curve }}, defaultMode: 0400, items: [{key: curve, path: curve}, {key: curve.clients, path: curve.clients}]}
{{- end }}
{{- if include "mainspring.configuration" .root }}
- name: configuration
  configMap: {name: {{ include "mainspring.name" .root }}-configuration}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "mainspring.storeVolume" -}}
{{- if .Values.store.claim }}
- name: store
  persistentVolumeClaim: {claimName: {{ .Values.store.claim }}}
{{- else if .Values.store.hostPath }}
- name: store
  hostPath: {path: {{ .Values.store.hostPath | quote }}, type: Directory}
{{- end }}
{{- end }}

{{/* Both probes: of a process that speaks our own protocol, whether its port takes a connection. */}}
{{- define "mainspring.probes" -}}
startupProbe:
  tcpSocket: {port: {{ . }}}
  periodSeconds: 2
  failureThreshold: 150
readinessProbe:
  tcpSocket: {port: {{ . }}}
  periodSeconds: 5
livenessProbe:
  tcpSocket: {port: {{ . }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{/* What values.schema.json can't say in a sentence. */}}
{{- define "mainspring.check" -}}
{{- if gt (len (compact (list .Values.store.claim .Values.store.hostPath .Values.store.from))) 1 }}
{{- fail "of store.claim, store.hostPath and store.from more than one is set: the store is one of them" }}
{{- end }}
{{- $keys := .Values.security.keys }}
{{- $several := gt (int .Values.controllers.count) 1 }}
{{- if and $several (regexMatch "(?m)^\\s*\\[\\s*shards\\s*\\]" .Values.configuration) }}
{{- fail "configuration has a table [shards], which controllers.count writes: leave it out of configuration" }}
{{- end }}
{{- if and $several .Values.controllers.standbys }}
{{- fail "controllers.standbys is for one controller: with several in controllers.count, none stands by" }}
{{- end }}
{{- $roles := list "controller" "gateway" "worker" }}
{{- if and $several .Values.balancer.enabled }}{{ $roles = append $roles "balancer" }}{{ end }}
{{- if .Values.console.enabled }}{{ $roles = append $roles "console" }}{{ end }}
{{- $missing := list }}
{{- range $roles }}{{ if not (get $keys .) }}{{ $missing = append $missing (printf "security.keys.%s" .) }}{{ end }}{{ end }}
{{- if $missing }}
{{- fail (printf "processes of several pods know each other by keys: set %s" (join ", " $missing)) }}
{{- end }}
{{- if not (or .Values.security.tls .Values.security.insecure) }}
{{- fail "what clients say would not be encrypted: set security.tls, or security.insecure=true" }}
{{- end }}
{{- with .Values.gateways.autoscaling }}
{{- if and .enabled (not .inFlightRequests) (not .cpuPercent) }}
{{- fail "gateways.autoscaling has nothing to scale by: set inFlightRequests or cpuPercent above 0" }}
{{- end }}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) }}
{{- fail (printf "gateways.autoscaling.minReplicas is %v, above maxReplicas, which is %v" .minReplicas .maxReplicas) }}
{{- end }}
{{- end }}
{{- $names := list }}
{{- range .Values.workers }}
{{- $group := .name }}
{{- range $shard := until (int $.Values.controllers.count) }}
{{- $set := printf "%s%s" $group (include "mainspring.ending" $shard) }}
{{- if has $set $names }}
{{- fail (printf "two groups of workers are called %q: give each a name of its own" $set) }}
{{- end }}
{{- $names = append $names $set }}
{{- end }}
{{- with mustMergeOverwrite (deepCopy $.Values.workerDefaults) . }}
{{- if and (eq .device "cuda") (eq .engine "emulated") }}
{{- fail (printf "the group of workers %q emulates its device: leave device cpu" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
