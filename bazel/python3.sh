#!/bin/sh
# The interpreter of //bazel:python: the first python3 on PATH.
exec python3 "$@"
