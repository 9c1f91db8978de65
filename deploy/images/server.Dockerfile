# The image of sumpter-server: one static file, no shell, no root. `make images` builds it; its
# context is what deploy/release/images.py lays out in target/images/server.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="sumpter-server" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY sumpter-server /usr/local/bin/sumpter-server
COPY LICENSE THIRD-PARTY.txt /usr/share/doc/sumpter/
# Where the health check asks; in the container only, unless SUMPTER_METRICS_ADDRESS says otherwise.
ENV SUMPTER_METRICS_PORT=9464
USER 65532:65532
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=6 \
    CMD ["/usr/local/bin/sumpter-server", "health"]
ENTRYPOINT ["/usr/local/bin/sumpter-server"]
