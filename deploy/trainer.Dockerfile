# A trainer: TensorFlow and the feed. Your own model comes on top, or is mounted.
#
#   docker build -f deploy/trainer.Dockerfile -t stoker-trainer .
#   docker build -f deploy/trainer.Dockerfile -t stoker-trainer --build-arg EXTRAS=trainer-gpu .
#
# If there is a folder `wheels` beside pyproject.toml, packages come from there alone, and no index is asked.
ARG BASE=python:3.13-slim

FROM ${BASE} AS packages
WORKDIR /source
COPY . .
ARG EXTRAS=trainer-cpu
RUN if [ -d wheels ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/source/wheels; fi \
    && python3 -m venv /opt/stoker \
    && /opt/stoker/bin/pip install --no-cache-dir ".[${EXTRAS}]" \
    && /opt/stoker/bin/pip uninstall --yes pip

FROM ${BASE}
# Debian's latest is right: tini has no versions to choose from. A base that has tini needs no package index.
# hadolint ignore=DL3008
RUN command -v tini \
    || { apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; }
COPY --from=packages /opt/stoker /opt/stoker
ENV PATH=/opt/stoker/bin:$PATH PYTHONUNBUFFERED=1
# A model's script and its checkpoints are mounted; nothing else is written.
RUN install -d -m 1777 /train
WORKDIR /train
USER 65534:65534
ENTRYPOINT ["tini", "--"]
CMD ["trainer-client", "--help"]
