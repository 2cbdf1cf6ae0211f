#!/bin/sh
# Runs `autosync` with what is given. NAME_FILE names a file that holds a secret, as orchestrators
# mount them: its content becomes NAME, and stands in no description of the container.
set -eu
for name in AUTOSYNC_TOKEN AUTOSYNC_DATABASE_URL PGPASSWORD; do
  eval "file=\${${name}_FILE:-}"
  [ -n "$file" ] || continue
  if ! value=$(cat "$file"); then
    echo "entrypoint: ${name}_FILE names $file, which cannot be read." >&2
    exit 2
  fi
  export "$name=$value"
  unset "${name}_FILE"
done
exec autosync "$@"
