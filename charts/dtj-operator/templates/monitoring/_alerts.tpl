{{/* The alerts, a list. Only the operator that leads has metrics of jobs. */}}
{{- define "dtj-operator.alerts" -}}
{{- $from := printf "job=%q, namespace=%q" (printf "%s-metrics" (include "dtj-operator.fullname" .)) .Release.Namespace -}}
{{- $values := .Values.metrics.prometheusRule -}}
{{- $job := "{{ $labels.job_namespace }}/{{ $labels.job_name }}" -}}
{{- $named := "{{ $labels.job_namespace }} {{ $labels.job_name }}" -}}
- alert: DtjOperatorDown
  expr: absent(dtj_leader{ {{- $from -}} } == 1)
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: No dtj-operator works.
    description: >-
      Jobs that run go on, but none starts, restarts or ends. See
      `kubectl -n {{ .Release.Namespace }} describe pods -l app.kubernetes.io/name={{ .Chart.Name }}` and the pods' logs.
- alert: DtjTwoLeaders
  expr: sum(dtj_leader{ {{- $from -}} }) > 1
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: More than one dtj-operator works.
    description: Two operators work on the same jobs. Run all with leaderElection.enabled and the same Lease.
- alert: DtjReplicaMissing
  expr: count(up{ {{- $from -}} } == 1) < {{ .Values.replicas }}
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: Fewer than {{ .Values.replicas }} dtj-operators run.
    description: >-
      The loss of the one that works would stop jobs from starting and ending. See
      `kubectl -n {{ .Release.Namespace }} get pods -l app.kubernetes.io/name={{ .Chart.Name }}`.
- alert: DtjPassesFail
  expr: >-
    sum(rate(dtj_reconcile_failures_total{ {{- $from -}} }[10m]))
    / sum(rate(dtj_reconcile_duration_seconds_count{ {{- $from -}} }[10m])) > 0.1
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: More than a tenth of the operator's passes over jobs break off.
    description: They are tried again, but jobs start and end late. The operator's log names the jobs and the errors.
- alert: DtjForbidden
  expr: sum by (verb, kind) (increase(dtj_api_requests_total{ {{- $from -}} , code="403"}[15m])) > 0
  labels: {severity: warning}
  annotations:
    summary: {{ `The API server forbids the operator to {{ $labels.verb }} {{ $labels.kind }}.` | quote }}
    description: A right is missing in its role, or a quota or an admission policy of a job's namespace refuses its objects.
- alert: DtjWebhookCertificateExpires
  expr: min(dtj_webhook_certificate_expiry_timestamp_seconds{ {{- $from -}} }) - time() < 2 * 86400
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: The certificate of the admission webhook is missing, has expired or will within two days.
    description: >-
      It was to be renewed long before. Without it wrong jobs are taken, or all refused with `webhook.failurePolicy: Fail`. The
      operator's log, or cert-manager's Certificate, says why.
- alert: DtjApiFails
  expr: >-
    sum(rate(dtj_api_requests_total{ {{- $from -}} , code=~"0|429|5.."}[10m]))
    / sum(rate(dtj_api_requests_total{ {{- $from -}} }[10m])) > 0.05
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: More than a twentieth of the operator's requests to the API server fail.
    description: It does not answer (code 0), throttles (429) or breaks (5xx). Requests are made again, but jobs start and end late.
- alert: DtjQueueDeep
  expr: sum(dtj_queue_depth{ {{- $from -}} }) > {{ int $values.queueDepth }}
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: {{ printf "%s jobs wait for the operator." "{{ $value }}" | quote }}
    description: It does not keep up with what happens. Look at its CPU and at the API server's latency, raise `workers`.
- alert: DtjPassesSlow
  expr: >-
    histogram_quantile(0.99, sum by (le) (rate(dtj_reconcile_duration_seconds_bucket{ {{- $from -}} }[10m]))) > 5
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: The operator's passes over jobs take longer than 5 s.
    description: Most of a pass is waiting for the API server, which is slow or throttles.
- alert: DtjEventLoopLags
  expr: >-
    histogram_quantile(0.999, sum by (le) (rate(dtj_event_loop_lag_seconds_bucket{ {{- $from -}} }[10m]))) > 0.1
  for: 15m
  labels: {severity: warning}
  annotations:
    summary: The operator's event loop stands still again and again, each time for more than 0.1 s.
    description: >-
      One pass keeps the jobs of all others waiting, or the operator's CPU is at its limit. For standstills of more than a
      second the operator's log says where the loop stood.
- alert: DtjStatusesRefused
  expr: sum(increase(dtj_statuses_refused_total{ {{- $from -}} }[1h])) > 0
  labels: {severity: warning}
  annotations:
    summary: The API server refuses statuses of jobs.
    description: >-
      They are stored without progress and reports of pods. Events of the reason StatusRefused name the jobs and the fields:
      install the CRD of the operator's version, or report a bug.
- alert: DtjJobStuck
  expr: >-
    max by (job_namespace, job_name) (
    last_over_time(dtj_job_phase{ {{- $from -}} , phase=~"Pending|Starting|Restarting"}[5m])) > 0
  for: {{ $values.jobsStuckFor }}
  labels: {severity: warning}
  annotations:
    summary: {{ printf "Job %s has not run for %s." $job $values.jobsStuckFor | quote }}
    description: {{ printf "It is Pending, Starting or Restarting. See \"dtj status -n %s\" and \"dtj doctor\". A limit of its own is runPolicy.startDeadlineSeconds." $named | quote }}
- alert: DtjJobStalled
  expr: max by (job_namespace, job_name) (dtj_job_stalled{ {{- $from -}} }) > 0
  for: 1m
  labels: {severity: warning}
  annotations:
    summary: {{ printf "Job %s stands still." $job | quote }}
    description: {{ printf "All its pods run and its step does not move. The condition Stalled says where the stacks of its ranks are: \"dtj status -n %s\"." $named | quote }}
- alert: DtjCheckpointStale
  expr: >-
    time() - max by (job_namespace, job_name) (dtj_job_unsaved_timestamp_seconds{ {{- $from -}} })
    > {{ int $values.checkpointAgeSeconds }}
    or (time() - max by (job_namespace, job_name) (dtj_job_unsaved_timestamp_seconds{ {{- $from -}} })
    > 3 * max by (job_namespace, job_name) (
    (max_over_time(dtj_job_checkpoint_timestamp_seconds{ {{- $from -}} }[6h])
    - min_over_time(dtj_job_checkpoint_timestamp_seconds{ {{- $from -}} }[6h]))
    / (changes(dtj_job_checkpoint_timestamp_seconds{ {{- $from -}} }[6h]) > 2))) > 600
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: {{ printf "Job %s would lose {{ $value | humanizeDuration }} of training." $job | quote }}
    description: {{ printf "Its newest checkpoint is older than %d s, or than three of its usual intervals and 10 minutes. See \"dtj logs -n %s\" for what its upload says." (int $values.checkpointAgeSeconds) $named | quote }}
- alert: DtjGpusIdle
  expr: max by (job_namespace, job_name) (last_over_time(dtj_job_idle_gpus{ {{- $from -}} }[5m])) > 0
  for: {{ $values.gpusIdleFor }}
  labels: {severity: warning}
  annotations:
    summary: {{ printf "Job %s has held accelerators without training for %s." $job $values.gpusIdleFor | quote }}
    description: {{ printf "{{ $value }} of them now: some of its pods wait for the others, or stand still. See \"dtj status -n %s\"." $named | quote }}
{{- end }}
