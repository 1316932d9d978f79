# Sourced by check, test and bench (and by anything that needs the project's own .venv).
#
#   source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
#   prepare_environment test check     # the dependency groups of pyproject.toml that are needed
#   "$PYTHON" -m pytest
#
# prepare_environment makes .venv beside pyproject.toml, installs the project (editable) and the groups, and sets
# $PYTHON. It costs a few milliseconds once pyproject.toml has been installed as it stands. It needs Python 3.11 or
# newer with the venv module and, the first time, a package index; where one of these is missing it says so in a
# sentence and ends the script with status 1.

corral_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
corral_venv="$corral_root/.venv"
PYTHON="$corral_venv/bin/python"

give_up() {
  printf '%s: %s\n' "$(basename "$0")" "$1" >&2
  exit 1
}

# Prints the first interpreter that is new enough.
find_python() {
  local name
  for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$name"
      return 0
    fi
  done
  return 1
}

make_venv() {
  local python
  python="$(find_python)" || give_up "Python 3.11 or newer is needed; \
python3 here is $(python3 -c 'import platform; print(platform.python_version())' 2>/dev/null || echo missing)."
  "$python" -c 'import venv, ensurepip' 2>/dev/null || give_up "$python has no venv module; \
install it (on Debian and Ubuntu: apt install python3-venv) and try again."
  "$python" -m venv --clear "$corral_venv" || give_up "$python could not make $corral_venv."
}

# What an installation is made from, and where: an editable one holds the checkout's path. A copy of this is kept for
# the project and each group, so that scripts which need different groups share what is there.
source_of_installation() {
  printf '%s\n' "$corral_root"
  cat "$corral_root/pyproject.toml"
}

is_installed() {
  local name
  [ -x "$PYTHON" ] || return 1
  for name in project "$@"; do
    source_of_installation | cmp -s - "$corral_venv/installed-$name" || return 1
  done
}

# The requirements of groups, one a line; pip reads dependency groups itself only from 25.1 on.
requirements_of() {
  "$PYTHON" -c 'import sys, tomllib
with open(sys.argv[1], "rb") as file:
    groups = tomllib.load(file)["dependency-groups"]
print(*(requirement for name in sys.argv[2:] for requirement in groups[name]), sep="\n")' \
    "$corral_root/pyproject.toml" "$@"
}

install_project() {
  local log="$corral_venv/install.log" requirement
  local requirements=()
  if [ $# -gt 0 ]; then
    while IFS= read -r requirement; do requirements+=("$requirement"); done < <(requirements_of "$@")
  fi
  if ! "$PYTHON" -m pip install --disable-pip-version-check --editable "$corral_root" \
    ${requirements[@]+"${requirements[@]}"} >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    give_up "pip could not install what pyproject.toml asks for (its last words are above, the rest in $log). \
The first run needs a package index: check the network, or set PIP_INDEX_URL."
  fi
}

prepare_environment() {
  local name
  ! is_installed "$@" || return 0
  # A .venv without pip, or of an interpreter that is gone or too old, is made again.
  if ! "$PYTHON" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    printf '%s: making .venv\n' "$(basename "$0")" >&2
    make_venv
  fi
  printf '%s: installing corral%s into .venv\n' "$(basename "$0")" "${*:+ with what is needed to $*}" >&2
  install_project "$@"
  for name in project "$@"; do
    source_of_installation >"$corral_venv/installed-$name"
  done
}
