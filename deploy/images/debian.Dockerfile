# A base for the worker's image where none can be pulled: what mmdebstrap makes of Debian's packages.
FROM scratch
ADD base.tar /
CMD ["python3"]
