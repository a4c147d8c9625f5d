# lastword and the Spark that it runs on, in one image: the service, a standalone master and its workers are the same versions by build.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 lastword

WORKDIR /opt/lastword
ENV PATH="/opt/lastword/.venv/bin:$PATH" \
    LASTWORD_JARS=/opt/lastword/.jars \
    PYTHONUNBUFFERED=1

# What changes seldom comes first: the locked packages, then the locked jars, then the code.
COPY requirements-service.lock ./
RUN python -m venv .venv && .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-service.lock
COPY pyproject.toml README.md LICENSE ./
COPY lastword lastword
COPY pyspark_lastword pyspark_lastword
COPY streaming streaming
COPY storage storage
COPY change_data change_data
COPY checkpoints checkpoints
COPY compaction compaction
RUN .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check hatchling==1.27.0 \
    && .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && .venv/bin/python -m lastword.spark.jars && .venv/bin/python -m lastword.spark.jars --group s3 \
    && mkdir work data incoming && chown lastword work data
COPY conf conf

USER lastword
EXPOSE 9464
HEALTHCHECK --interval=15s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9464/healthz', timeout=4)"]
ENTRYPOINT ["tini", "--"]
CMD ["lastword", "run", "-c", "conf/lastword.toml"]
