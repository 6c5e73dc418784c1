{{- define "tidelog.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tidelog.selector" -}}
app.kubernetes.io/name: tidelog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidelog.labels" -}}
{{ include "tidelog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidelog.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The name of a Secret: (list $ "cluster"). */ -}}
{{- define "tidelog.secret" -}}
{{- $root := index . 0 -}}{{- $key := index . 1 -}}
{{- get $root.Values.secrets $key | default (printf "%s-%s" (include "tidelog.name" $root) (lower $key)) -}}
{{- end }}

{{- define "tidelog.headless" -}}
{{- $root := index . 0 -}}
{{ include "tidelog.name" $root }}-{{ index . 1 }}.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
{{- end }}

{{- /* id@host:port of every controller: (list $ port). */ -}}
{{- define "tidelog.voters" -}}
{{- $root := index . 0 -}}{{- $port := index . 1 -}}
{{- $voters := list -}}
{{- range $at := until (int $root.Values.controllers.replicas) -}}
{{- $host := printf "%s-controller-%d.%s" (include "tidelog.name" $root) $at (include "tidelog.headless" (list $root "controllers")) -}}
{{- $voters = append $voters (printf "%d@%s:%d" (add 1000 $at) $host (int $port)) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end }}

{{- define "tidelog.brokerCount" -}}
{{- mul (max 1 (len .Values.brokers.zones)) (int .Values.brokers.replicas) -}}
{{- end }}

{{- /* What nodes of every role have in common: (list $ and the Secret with the role's own certificate). */ -}}
{{- define "tidelog.settings" -}}
{{- $own := index . 1 -}}
{{- with index . 0 -}}
log.dirs=/var/lib/tidelog/data
controller.quorum.voters={{ include "tidelog.voters" (list . 9190) }}
tidelog.cluster.secret.file=/run/secrets/tidelog/cluster/cluster.secret
tidelog.metrics.listener=:9100
{{- if .Values.tier.uri }}
tidelog.tier.uri={{ .Values.tier.uri }}
{{- end }}
{{- if .Values.proxies.enabled }}
tidelog.proxy.domain={{ required "proxies.domain: the domain of tenants' host names" .Values.proxies.domain }}
tidelog.proxy.port=9092
tidelog.proxy.advertised.port={{ .Values.proxies.service.port }}
{{- end }}
{{- if .Values.tls.enabled }}
listener.security.protocol.map=INTERNAL:SSL,CLIENTS:SASL_SSL,OPERATORS:SSL{{ if .Values.proxies.enabled }},TENANT:SASL_SSL{{ end }}
ssl.keystore.location=/run/secrets/tidelog/{{ $own }}/tls-combined.pem
ssl.truststore.location=/run/secrets/tidelog/{{ $own }}/ca.crt
{{- else }}
tidelog.internal.allow.plaintext=true
{{- end }}
{{- end }}
{{- end }}

{{- /* What the operator of this release adds, after all else. */ -}}
{{- define "tidelog.further" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }}={{ $value }}
{{- end }}
{{- end }}

{{- /* Defaults of topics, which controllers and brokers need alike. */ -}}
{{- define "tidelog.topicDefaults" -}}
{{- $replicas := min 3 (int (include "tidelog.brokerCount" .)) -}}
default.replication.factor={{ $replicas }}
offsets.topic.replication.factor={{ $replicas }}
transaction.state.log.replication.factor={{ $replicas }}
min.insync.replicas={{ ternary 2 1 (ge (int $replicas) 3) }}
{{- end }}

{{- define "tidelog.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "tidelog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "tidelog.probes" -}}
startupProbe: # a broker reads its logs first
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "tidelog.environment" -}}
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
{{- end }}

{{- /* Of the bucket, whose credentials only controllers and brokers get: proxies, which the Internet reaches, do not. */ -}}
{{- define "tidelog.storeEnvironment" -}}
{{- if .Values.secrets.objectStore }}
- name: AWS_SHARED_CREDENTIALS_FILE
  value: /run/secrets/tidelog/object-store/credentials
{{- end }}
{{- end }}

{{- /* Where secrets are mounted: (list $ "nodes" "server" …) beside the cluster's. */ -}}
{{- define "tidelog.mounts" -}}
{{- $root := index . 0 -}}
- { name: settings, mountPath: /etc/tidelog, readOnly: true }
- { name: tmp, mountPath: /tmp }
- { name: cluster, mountPath: /run/secrets/tidelog/cluster, readOnly: true }
{{- if $root.Values.tls.enabled }}
{{- range rest . }}
- { name: {{ . }}, mountPath: /run/secrets/tidelog/{{ . }}, readOnly: true }
{{- end }}
{{- end }}
{{- if and $root.Values.secrets.objectStore (not (has "proxies" (rest .))) }}
- { name: object-store, mountPath: /run/secrets/tidelog/object-store, readOnly: true }
{{- end }}
{{- end }}

{{- define "tidelog.volumes" -}}
{{- $root := index . 0 -}}
- name: settings
  configMap: { name: {{ include "tidelog.name" $root }} }
- name: tmp
  emptyDir: {}
- name: cluster
  secret: { secretName: {{ include "tidelog.secret" (list $root "cluster") }}, defaultMode: 0440 }
{{- if $root.Values.tls.enabled }}
{{- range rest . }}
- name: {{ . }}
  secret: { secretName: {{ include "tidelog.secret" (list $root .) }}, defaultMode: 0440 }
{{- end }}
{{- end }}
{{- if and $root.Values.secrets.objectStore (not (has "proxies" (rest .))) }}
- name: object-store
  secret: { secretName: {{ $root.Values.secrets.objectStore }}, defaultMode: 0440 }
{{- end }}
{{- end }}

{{- /* Over machines and zones: (list $ "broker" and what to do where machines do not suffice). */ -}}
{{- define "tidelog.spread" -}}
{{- $root := index . 0 -}}
{{- range $key, $otherwise := dict "kubernetes.io/hostname" (index . 2) "topology.kubernetes.io/zone" "ScheduleAnyway" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: {{ $otherwise }}
  labelSelector:
    matchLabels:
      {{- include "tidelog.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ index $ 1 }}
{{- end }}
{{- end }}

{{- define "tidelog.claim" -}}
- metadata: { name: data }
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: { requests: { storage: {{ .size }} } }
{{- end }}

{{- /* What pods of every role have: (list $ values of the role). */ -}}
{{- define "tidelog.pod" -}}
{{- $root := index . 0 -}}{{- $own := index . 1 -}}
serviceAccountName: {{ include "tidelog.name" $root }}
automountServiceAccountToken: false
securityContext:
  {{- include "tidelog.podSecurity" $root | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $own.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Pods of this release: (list $ "controller" …). */ -}}
{{- define "tidelog.peers" }}
{{- range rest . }}
- podSelector:
    matchLabels:
      {{- include "tidelog.selector" (index $ 0) | nindent 6 }}
      app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}
