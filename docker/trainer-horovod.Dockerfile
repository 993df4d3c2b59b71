# The trainer's image for Horovod: Python, PyTorch, Open MPI, sshd, Horovod, and dtj_trainer on top.
#
# docker/build.py builds the image and its context: wheelhouse/ (every Python package, and
# Horovod's wheel), horovod/ (Horovod's patched source), dtj/ (this repository's trainer). The build
# needs BuildKit. Targets:
#
#   horovod   the base of a user's own image, without dtj_trainer
#   trainer   the default: entry point dtj-launch, and the built-in programs
#   compile   the trainer with a C++ compiler, for torch.compile on CPUs
#
# For NVIDIA GPUs: docs/gpu-images.md.

ARG BASE_IMAGE=debian:bookworm-slim
# The image that compiles Horovod with HOROVOD_FROM=source; for CUDA the `devel` image of PyTorch's CUDA version.
ARG BUILD_IMAGE=${BASE_IMAGE}
# wheelhouse: packages are in the context. index: pip uses the package index (whose torch is built with CUDA).
ARG PACKAGES_FROM=wheelhouse
# wheelhouse: Horovod's wheel is in the context. source: Horovod is compiled here.
ARG HOROVOD_FROM=wheelhouse
ARG HOROVOD_GPU_OPERATIONS=
# gcc: all targets have a C++ compiler, as those for GPUs, where Triton compiles. Empty: `compile` alone has one.
ARG COMPILER=${HOROVOD_GPU_OPERATIONS:+gcc}


FROM ${BASE_IMAGE} AS system
# Versions are not pinned: Debian's archive keeps only one version for each release.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates openmpi-bin openssh-client openssh-server python3 tini \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
# - uid 1000 gets a user name of ours, because Ubuntu's images have another user with this uid. The password `*`
# allows logins by key; sshd rejects an account that is locked by `!`. - Group 0 may write /etc/passwd: OpenShift runs
# pods with a uid unknown to the image, and start.sh adds an entry. - sshd needs /run/sshd even without root. -
# Without CAP_SYS_PTRACE, ranks of one pod can't read each other's memory. The setting keeps Open MPI from warning
# about it. Debian's file lacks a newline at its end.
RUN if id 1000 >/dev/null 2>&1; then userdel --remove "$(id -un 1000)"; fi \
    && groupadd --gid 1000 dtj \
    && useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash --password '*' dtj \
    && chmod g=u /etc/passwd \
    && install --directory --owner=1000 --group=1000 /dtj \
    && install --directory /run/sshd \
    && printf '\nbtl_vader_single_copy_mechanism = none\n' >> /etc/openmpi/openmpi-mca-params.conf
# - LD_LIBRARY_PATH: GKE mounts the GPU driver in these folders; they do not exist elsewhere. -
# NVIDIA_DRIVER_CAPABILITIES: without it, old NVIDIA runtimes add the GPU without CUDA's driver. -
# NVIDIA_VISIBLE_DEVICES: NVIDIA's images set `all`, which shows all GPUs of a node to a pod that requested none. For
# a pod with GPUs, the device plugin sets the variable.
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=void \
    PYTHONUNBUFFERED=1
# What torch.compile and Triton compile: on the pod's volume, because the root may be read-only.
ENV TORCHINDUCTOR_CACHE_DIR=/dtj/cache/torchinductor \
    TRITON_CACHE_DIR=/dtj/cache/triton


FROM system AS system-none

FROM system AS system-gcc
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/*


FROM ${BUILD_IMAGE} AS python
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/venv


FROM python AS torch-wheelhouse
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    /opt/venv/bin/pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/horovod.txt

FROM python AS torch-index
# Another version or build of PyTorch than the pinned one, for example 2.13.0+cu126.
ARG TORCH_VERSION=
# pip's own settings: a mirror, or an index of PyTorch's builds. They appear in the image's history: use no passwords.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=bind,source=requirements,target=/requirements \
    cp /requirements/constraints.txt /requirements/horovod.txt /tmp/ \
    && if [ -n "$TORCH_VERSION" ]; then \
        sed -i "s/^torch==.*/torch==$TORCH_VERSION/" /tmp/constraints.txt /tmp/horovod.txt; fi \
    && /opt/venv/bin/pip install --no-cache-dir \
        --constraint /tmp/constraints.txt --requirement /tmp/horovod.txt


# hadolint ignore=DL3006
FROM torch-${PACKAGES_FROM} AS torch
ARG HOROVOD_GPU_OPERATIONS=
RUN --mount=type=bind,source=requirements,target=/requirements \
    /opt/venv/bin/python -B /requirements/gpu_check.py before-horovod


FROM torch AS horovod-wheelhouse
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    mkdir /wheels && cp /wheelhouse/horovod-*.whl /wheels/

FROM torch AS horovod-source
# Compute capabilities to compile for, for example 80,90; empty: all that nvcc supports.
ARG HOROVOD_BUILD_CUDA_CC_LIST=
# NCCL's folder, and its linkage: STATIC or SHARED; empty: PyTorch's own NCCL, shared, so that a rank loads one NCCL.
ARG HOROVOD_NCCL_HOME=
ARG HOROVOD_NCCL_LINK=
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        cmake g++ libopenmpi-dev make openmpi-bin python3-dev
# hadolint ignore=SC2046,SC2155
RUN --mount=type=bind,source=horovod,target=/horovod \
    --mount=type=bind,source=requirements,target=/requirements \
    cp -r /horovod /tmp/horovod \
    && export $(cat /requirements/horovod-build.env) MAKEFLAGS="-j$(nproc)" \
    && if [ "$HOROVOD_GPU_OPERATIONS" = NCCL ] && [ -z "$HOROVOD_NCCL_HOME" ]; then \
        export HOROVOD_NCCL_HOME=/tmp/nccl HOROVOD_NCCL_LINK=SHARED \
        && mkdir -p /tmp/nccl/lib \
        && ln -s /opt/venv/lib/python3*/site-packages/nvidia/nccl/include /tmp/nccl/include \
        && ln -s /opt/venv/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2 /tmp/nccl/lib/libnccl.so; fi \
    && for name in HOROVOD_GPU_OPERATIONS HOROVOD_BUILD_CUDA_CC_LIST HOROVOD_NCCL_HOME HOROVOD_NCCL_LINK; do \
        if [ -z "$(printenv "$name")" ]; then unset "$name"; fi; done \
    && /opt/venv/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /tmp/horovod


# hadolint ignore=DL3006
FROM horovod-${HOROVOD_FROM} AS horovod-wheel

FROM torch AS venv
# Remove PyTorch's static libraries and test programs. torch.compile needs its headers.
RUN --mount=type=bind,from=horovod-wheel,source=/wheels,target=/wheels \
    /opt/venv/bin/pip install --no-cache-dir --no-deps --no-index /wheels/horovod-*.whl \
    && rm -rf /opt/venv/lib/python3*/site-packages/torch/test \
    && find /opt/venv/lib/python3*/site-packages/torch -name '*.a' -delete \
    && find /opt/venv/lib/python3*/site-packages/torch/bin -type f -name 'test_*' -delete


FROM python AS dtj
# The wheel contains only the trainer, so that a change of the operator does not change this image.
RUN --mount=type=bind,source=dtj,target=/source \
    --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    cp -r /source /tmp/dtj && mkdir -p /tmp/dtj/operator \
    && /opt/venv/bin/pip wheel --no-cache-dir --no-deps --no-index --find-links=/wheelhouse \
        --wheel-dir /dist /tmp/dtj


# hadolint ignore=DL3006
FROM system-${COMPILER:-none} AS horovod
COPY --from=venv /opt/venv /opt/venv
# Verify that PyTorch and Horovod load here, and that both or neither use GPUs.
RUN --mount=type=bind,source=requirements,target=/requirements \
    python -B /requirements/gpu_check.py image
USER 1000:1000
WORKDIR /dtj
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["python"]


FROM horovod AS needs-wheelhouse
USER 0:0
RUN --mount=type=bind,source=wheelhouse,target=/wheelhouse \
    --mount=type=bind,source=requirements,target=/requirements \
    pip install --no-cache-dir --no-index --find-links=/wheelhouse \
        --constraint /requirements/constraints.txt --requirement /requirements/trainer.txt
USER 1000:1000

FROM horovod AS needs-index
USER 0:0
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
RUN --mount=type=bind,source=requirements,target=/requirements \
    pip install --no-cache-dir \
        --constraint /requirements/constraints.txt --requirement /requirements/trainer.txt
USER 1000:1000


# hadolint ignore=DL3006
FROM needs-${PACKAGES_FROM} AS trainer
USER 0:0
RUN --mount=type=bind,from=dtj,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps --no-index /dist/dtjob-*.whl \
    && rm /opt/venv/bin/dtj /opt/venv/bin/dtj-operator
USER 1000:1000
# tini reaps orphans of ranks. Without -g, tini forwards a signal to dtj-launch alone, which decides when other
# processes get a signal.
ENTRYPOINT ["/usr/bin/tini", "--", "dtj-launch"]


FROM trainer AS compile
USER 0:0
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/*
USER 1000:1000
