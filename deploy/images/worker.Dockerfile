# The image of a worker: Python, PyTorch and Sumpter; scripts come on top of it or from a volume.
# `make images` builds it; its context is what deploy/release/images.py lays out in
# target/images/worker: all packages, so that the build needs no network.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
ARG VERSION
LABEL org.opencontainers.image.title="sumpter-worker" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN --mount=type=bind,source=packages,target=/packages \
    python3 -m venv /opt/sumpter \
    && /opt/sumpter/bin/pip install --no-cache-dir --no-index --find-links /packages \
        "sumpter[torch]==${VERSION}"
COPY LICENSE THIRD-PARTY.txt /usr/share/doc/sumpter/
ENV PATH=/opt/sumpter/bin:/usr/local/bin:/usr/bin:/bin
USER 65532:65532
WORKDIR /workspace
CMD ["sumpter", "doctor", "--no-self-test"]
