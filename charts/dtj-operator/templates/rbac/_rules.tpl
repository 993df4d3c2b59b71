{{/* What the operator may do where it runs jobs. */}}
{{- define "dtj-operator.rules" -}}
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs]
  # delete: those that have outlived runPolicy.ttlSecondsAfterFinished.
  verbs: [list, watch, delete]
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs/status]
  verbs: [patch]
# A job whose deletion waits for what belongs to it: where the API server enforces permissions of owner references, as on
# OpenShift, who makes such an object needs this right on its owner.
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch]
# A job's TensorBoard (spec.tensorboard). patch: of one whose spec has changed, or that is not wanted any more.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
# Made for a job, and gone with it through its owner reference: never read, listed or deleted.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- if .Values.jobNetworkPolicies.enabled }}
# Made for a job, and gone with it, as its Secret.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create]
{{- end }}
# The groups of jobs with schedulingPolicy.gang Coscheduling and Volcano, where those are installed.
- apiGroups: [scheduling.x-k8s.io, scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if .Values.mpiOperator.enabled }}
# Jobs with horovod.launcher: MPIJob. Who may make pods gains nothing by it.
- apiGroups: [kubeflow.org]
  resources: [mpijobs]
  verbs: [get, create, delete]
{{- end }}
{{- end }}

{{/* What the operator may do for its webhook in its own namespace: keep the certificate. */}}
{{- define "dtj-operator.webhookSecretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "dtj-operator.webhookName" . }}]
  verbs: [get, update]
{{- end }}

{{/* What it may do for its webhook in the cluster: tell the API server whom to trust. */}}
{{- define "dtj-operator.webhookConfigurationRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingwebhookconfigurations]
  resourceNames: [{{ include "dtj-operator.webhookName" . }}]
  verbs: [get, update]
{{- end }}

{{/* What a person sees of jobs. */}}
{{- define "dtj-operator.viewerRules" -}}
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs, distributedtrainingjobs/status]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [pods, pods/log, events]
  verbs: [get, list, watch]
{{- end }}

{{/* What a person does with jobs. */}}
{{- define "dtj-operator.userRules" -}}
- apiGroups: [dtj.dev]
  resources: [distributedtrainingjobs]
  verbs: [create, update, patch, delete, deletecollection]
# The archive of `dtj submit FOLDER` is made before its job. patch: the job becomes its owner.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch, delete]
{{ include "dtj-operator.viewerRules" . }}
{{- end }}

{{- define "dtj-operator.subjects" -}}
- kind: ServiceAccount
  name: {{ include "dtj-operator.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end }}
