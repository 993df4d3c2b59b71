{{/* Metadata of what `helm test` makes, and takes away with its pod. Arguments: namespace, weight, root. */}}
{{- define "dtj-operator.testMetadata" -}}
{{- $root := index . 2 -}}
name: {{ include "dtj-operator.testName" $root }}
namespace: {{ index . 0 }}
labels:
  # Not those of the operator's pods, which its Service and PodDisruptionBudget select.
  app.kubernetes.io/name: {{ $root.Chart.Name }}-test
  app.kubernetes.io/instance: {{ $root.Release.Name }}
  {{- include "dtj-operator.commonLabels" $root | nindent 2 }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-weight: {{ index . 1 | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "dtj-operator.testName" -}}
{{ include "dtj-operator.fullname" . }}-test
{{- end }}

{{/* What values say of the pods of the job; may be empty. */}}
{{- define "dtj-operator.testPodSpec" -}}
{{- $spec := dict }}
{{- range $name := list "imagePullSecrets" "nodeSelector" "tolerations" }}
{{- with get $.Values.test $name }}
{{- $_ := set $spec $name . }}
{{- end }}
{{- end }}
{{- with .Values.arch }}
{{- $_ := set $spec "nodeSelector" (merge (dict) (get $spec "nodeSelector" | default dict) (dict "kubernetes.io/arch" .)) }}
{{- end }}
{{- with $spec }}{{ toYaml . }}{{ end }}
{{- end }}
