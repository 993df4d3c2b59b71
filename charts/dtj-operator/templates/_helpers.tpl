{{/* Name of the objects. Short enough for the longest suffix in 63 characters. */}}
{{- define "dtj-operator.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- end -}}
{{- $name | trunc 47 | trimSuffix "-" -}}
{{- end }}

{{- define "dtj-operator.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (include "dtj-operator.fullname" .) -}}
{{- end }}

{{/* What tells the operator's pods from all others. `dtj doctor` looks for the name. */}}
{{- define "dtj-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dtj-operator.labels" -}}
{{ include "dtj-operator.selectorLabels" . }}
{{ include "dtj-operator.commonLabels" . }}
{{- end }}

{{- define "dtj-operator.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The registry of all images; empty: none. */}}
{{- define "dtj-operator.registry" -}}
{{- .Values.global.imageRegistry | default .Values.image.registry | trimSuffix "/" -}}
{{- end }}

{{/* An image in the registry of all images, unless it names a registry. Arguments: the image with or without tag, root. */}}
{{- define "dtj-operator.inRegistry" -}}
{{- $registry := include "dtj-operator.registry" (index . 1) -}}
{{- if and $registry (not (regexMatch "^(localhost|[^/]*[.:][^/]*)/" (index . 0))) }}{{ $registry }}/{{ end -}}
{{- index . 0 -}}
{{- end }}

{{/* An image's reference. With a digest the tag stays, for people and `dtj doctor`. Arguments: image, root. */}}
{{- define "dtj-operator.image" -}}
{{- $image := index . 0 -}}
{{- $root := index . 1 -}}
{{- printf "%s:%s" (include "dtj-operator.inRegistry" (list $image.repository $root)) ($image.tag | default $root.Chart.AppVersion) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{/* Labels that a node must have: Linux, the images' architecture, and those given. Arguments: those given, root. */}}
{{- define "dtj-operator.nodeSelector" -}}
{{- $own := dict "kubernetes.io/os" "linux" -}}
{{- with (index . 1).Values.arch -}}
{{- $_ := set $own "kubernetes.io/arch" . -}}
{{- end -}}
{{- toYaml (merge (dict) (index . 0) $own) -}}
{{- end }}

{{/* Name of the webhook's Service, configuration and Secret; the one that cert-manager fills has its own. */}}
{{- define "dtj-operator.webhookName" -}}
{{- include "dtj-operator.fullname" . }}-webhook
{{- end }}

{{/* Where the job of `helm test` runs. */}}
{{- define "dtj-operator.testNamespace" -}}
{{- .Values.test.namespace | default (first .Values.watchNamespaces) | default .Release.Namespace -}}
{{- end }}

{{/* What no schema can say of values that are each right. */}}
{{- define "dtj-operator.check" -}}
{{- $election := .Values.leaderElection -}}
{{- if and (gt (int .Values.replicas) 1) (not $election.enabled) -}}
{{- fail (printf "replicas: %d operators would all work on the same jobs without leaderElection.enabled; set that to true, or replicas to 1" (int .Values.replicas)) -}}
{{- end -}}
{{- if not (and (gt (float64 $election.leaseDuration) (float64 $election.renewDeadline)) (gt (float64 $election.renewDeadline) (float64 $election.retryPeriod))) -}}
{{- fail (printf "leaderElection: leaseDuration must be longer than renewDeadline, and that longer than retryPeriod; %v, %v and %v s are not" $election.leaseDuration $election.renewDeadline $election.retryPeriod) -}}
{{- end -}}
{{- if and .Values.userDefaults.config (not (or .Values.userDefaults.namespaces .Values.watchNamespaces)) -}}
{{- fail "userDefaults.namespaces: name the namespaces that get the ConfigMap dtj-defaults, since watchNamespaces is empty" -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.name: name the ServiceAccount to use, since serviceAccount.create is false" -}}
{{- end -}}
{{- $owned := dict "--namespace" "watchNamespaces" "--leader-elect" "leaderElection" "--no-leader-elect" "leaderElection" "--lease-" "leaderElection" "--renew-deadline" "leaderElection" "--retry-period" "leaderElection" "--job-network-policies" "jobNetworkPolicies" "--no-job-network-policies" "jobNetworkPolicies" "--job-user" "jobs.runAsUser" "--data-cache-host-path" "dataCache.hostPathPrefixes" "--workers" "workers" "--namespace-memory" "namespaceMemoryMegabytes" "--log-level" "logLevel" "--tensorboard-image" "tensorboard.image" "--webhook-port" "webhook" "--webhook-name" "webhook" "--webhook-cert-dir" "webhook" -}}
{{- range $arg := .Values.extraArgs -}}
{{- range $flag, $value := $owned -}}
{{- if hasPrefix $flag $arg -}}
{{- fail (printf "extraArgs: %s is set by the value %s" $arg $value) -}}
{{- end -}}
{{- end -}}
{{- if or (hasPrefix "--health-port" $arg) (hasPrefix "--metrics-port" $arg) -}}
{{- fail (printf "extraArgs: %s would leave the chart's probes and Service at the wrong port" $arg) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.watchNamespaces .Values.test.namespace (not (has .Values.test.namespace .Values.watchNamespaces)) -}}
{{- fail (printf "test.namespace: %s is none of watchNamespaces, so nobody would run the job" .Values.test.namespace) -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.service.enabled" -}}
{{- end -}}
{{- end }}
