#!/bin/sh
# Compiles our declarations of TensorFlow's C API together with TensorFlow's own headers: a
# difference is an error of the compiler. Usage: check_declarations.sh PYTHON..., each with a
# TensorFlow.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || { echo "usage: check_declarations.sh PYTHON..." >&2; exit 2; }
for python in "$@"; do
  include=$("$python" -c 'import importlib.util as u, os
print(os.path.join(os.path.dirname(u.find_spec("tensorflow").origin), "include"))')
  if [ ! -f "$include/tensorflow/c/kernels.h" ]; then
    echo "$include has no headers of TensorFlow" >&2
    exit 1
  fi
  "${CXX:-c++}" -std=c++17 -fsyntax-only -I "$include" -I "$here/src" \
    "$here/src/check_declarations.cc"
  echo "declarations fit $include"
done
