#!/bin/sh
# Builds libtarantella_tf.so into the directory that is given, beside libgaspi.so.1, without
# TensorFlow: it is linked against an empty library with the name of TensorFlow's, whose symbols the
# process has at run time.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh DIRECTORY_WITH_LIBGASPI}
compiler=${CXX:-c++}
stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
: >"$stub/empty.c"
"${CC:-cc}" -shared -fPIC -Wl,-soname,libtensorflow_framework.so.2 \
  -o "$stub/libtensorflow_framework.so" "$stub/empty.c"
"$compiler" -std=c++17 -O2 -fPIC -shared -fvisibility=hidden -fno-exceptions -fno-rtti \
  -Wall -Wextra -Werror \
  -nodefaultlibs -I "$here/../include" -I "$here/src" -o "$stub/libtarantella_tf.so" \
  "$here/src/operators.cc" "$here/src/batches.cc" \
  -Wl,-soname,libtarantella_tf.so -Wl,-rpath,'$ORIGIN' -Wl,--no-as-needed \
  -L "$stub" -ltensorflow_framework -Wl,--as-needed "$out/libgaspi.so.1" -lc -lgcc
# Renamed into place: a process may have the former one mapped.
cp "$stub/libtarantella_tf.so" "$out/.libtarantella_tf.so.new"
mv "$out/.libtarantella_tf.so.new" "$out/libtarantella_tf.so"
