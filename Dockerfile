# One image for every role: `tidelog` is its entry point, the role its argument. The target `spark` adds Java and Spark.
#   docker build --target node -t tidelog:VERSION .
#   docker build --target spark -t tidelog-spark:VERSION .

FROM python:3.11-slim-bookworm AS dependencies
RUN python -m venv /opt/tidelog
ENV PATH=/opt/tidelog/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Dependencies first: they change more seldom than the code, and this layer is kept.
COPY requirements/ requirements/
RUN pip install --quiet --require-hashes -r requirements/build.lock \
 && pip install --quiet --require-hashes --no-build-isolation -r requirements/s3.lock

FROM dependencies AS build
COPY . .
RUN pip install --quiet --no-build-isolation --no-deps . \
 && python -m compileall -q /opt/tidelog/lib \
 && pip uninstall --quiet --yes setuptools wheel pip

FROM python:3.11-slim-bookworm AS node
ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Tidelog" \
      org.opencontainers.image.description="A Kafka-protocol streaming service for many tenants" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.licenses="Apache-2.0"
# Directories of volumes: a named volume that is empty takes over owner and mode of what it is mounted on.
RUN useradd --uid 10001 --no-create-home tidelog \
 && install -d -o tidelog -g tidelog -m 0700 /var/lib/tidelog /run/tidelog /run/proxies /run/authority \
    /run/object-store
COPY --from=build /opt/tidelog /opt/tidelog
COPY docker/make-secrets docker/ready /usr/local/bin/
ENV PATH=/opt/tidelog/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/tidelog
USER tidelog
ENTRYPOINT ["tidelog"]

FROM dependencies AS spark-build
RUN pip install --quiet --require-hashes --no-build-isolation -r requirements/spark.lock
COPY . .
RUN pip install --quiet --no-build-isolation --no-deps . \
 && pip uninstall --quiet --yes wheel pip

FROM node AS spark
USER root
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* && ln -s "$(dirname "$(dirname "$(readlink -f "$(command -v java)")")")" /opt/java
ENV JAVA_HOME=/opt/java
COPY --from=spark-build /opt/tidelog /opt/tidelog
USER tidelog
ENTRYPOINT []
CMD ["python"]
