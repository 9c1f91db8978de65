{{/* What the names of all objects begin with. */}}
{{- define "sumpter.fullname" -}}
{{- $own := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- default $own .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "sumpter.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sumpter.labels" -}}
{{ include "sumpter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "sumpter.image" -}}
{{- $repository := required "image.repository is not set: there is no public image of sumpter-server; build one (docs/user/kubernetes.md) and give --set image.repository=REGISTRY/sumpter-server" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Where members find the coordinator: a name that stays when its pod does not. */}}
{{- define "sumpter.address" -}}
{{ include "sumpter.fullname" . }}-coordinator.{{ .Release.Namespace }}.svc:{{ .Values.coordinator.port }}
{{- end }}

{{- define "sumpter.tokenSecret" -}}
{{- default (printf "%s-token" (include "sumpter.fullname" .)) .Values.token.existingSecret -}}
{{- end }}

{{- define "sumpter.tokenKey" -}}
{{- ternary .Values.token.key "token" (ne .Values.token.existingSecret "") -}}
{{- end }}

{{/*
The name of a tenant's Secret; the context is (list $ tenant). It follows from the tenant's name alone: by the place in
the list, a tenant would get the token of another when one before it is removed.
*/}}
{{- define "sumpter.tenantSecret" -}}
{{- $tenant := index . 1 -}}
{{- $readable := regexReplaceAll "[^a-z0-9]+" (lower $tenant.name) "-" | trunc 40 | trimAll "-" -}}
{{- $own := compact (list (include "sumpter.fullname" (index . 0)) "tenant" $readable (sha256sum $tenant.name | trunc 8)) -}}
{{- default (join "-" $own) $tenant.existingSecret -}}
{{- end }}

{{/* A token that exists already, or a fresh one; the context is (list namespace name). */}}
{{- define "sumpter.madeToken" -}}
{{- $existing := lookup "v1" "Secret" (index . 0) (index . 1) -}}
{{- dig "data" "token" (randAlphaNum 48 | b64enc) ($existing | default dict) -}}
{{- end }}

{{- define "sumpter.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sumpter.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Settings as arguments; the context is a map. Numbers of a values file are floating point, so 12884901888 is 1.28e+10. */}}
{{- define "sumpter.settings" -}}
{{- range $name, $value := . }}
{{- $text := toString $value }}
{{- if kindIs "float64" $value }}
{{- $text = ternary (printf "%.0f" $value) $text (eq (floor $value) $value) }}
{{- end }}
- --set
- {{ printf "%s=%s" $name $text | quote }}
{{- end }}
{{- end }}

{{- define "sumpter.tlsSettings" -}}
{{- if .Values.tls.enabled }}
- --set
- tls_cert=/etc/sumpter/tls/tls.crt
- --set
- tls_key=/etc/sumpter/tls/tls.key
- --set
- tls_ca=/etc/sumpter/tls/ca.crt
- --set
- tls_data={{ .Values.tls.data }}
{{- end }}
{{- end }}

{{/* The Secret of a role's certificate; the context is (list $ role own). */}}
{{- define "sumpter.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.tls.certManager.enabled -}}
{{ include "sumpter.fullname" $root }}-{{ index . 1 }}-tls
{{- else -}}
{{- required (printf "tls.enabled needs cert-manager (tls.certManager.enabled) or a Secret with tls.crt, tls.key and ca.crt in tls.%sSecret" (index . 1)) (index . 2) -}}
{{- end -}}
{{- end }}

{{/* One peer or several that may connect, as of a NetworkPolicy. */}}
{{- define "sumpter.peers" -}}
{{- toYaml . -}}
{{- end }}

{{/* Networks as peers of a NetworkPolicy. */}}
{{- define "sumpter.blocks" -}}
{{- range . }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- end }}
