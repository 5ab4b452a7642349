# Sourced by every script here: repository root, a usable uv, and the way steps are shown.
# Needs: bash, Python 3.11 or later with pip, cargo.
# shellcheck shell=bash

set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

# The release line of uv that the lock files and the build backend are tested with.
uv_minimum=0.13.0
uv_requirement='uv>=0.13,<0.14'

# Interpreters come from the machine, never from a download; certificates are those that pip and cargo trust too.
export UV_PYTHON_DOWNLOADS=never
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# 1.2.3 -> succeeds when the version $1 is at least $2.
version_at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

uv_is_usable() {
    local version
    version=$("$1" --version 2>/dev/null | awk '{print $2}') && [ -n "$version" ] && version_at_least "$version" "$uv_minimum"
}

# Puts a usable uv on PATH: the one that is there, or one installed into .tools with pip.
ensure_uv() {
    if uv_is_usable uv; then
        return
    fi
    if ! uv_is_usable .tools/bin/uv; then
        command -v python3 >/dev/null || fail 'python3 is not on PATH; install Python 3.11 or later with pip'
        python3 -m pip --version >/dev/null 2>&1 || fail "python3 ($(command -v python3)) has no pip; install it, or put uv on PATH"
        printf 'Installing uv into .tools (no uv %s or later on PATH)\n' "$uv_minimum"
        python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target .tools "$uv_requirement"
    fi
    export PATH="$repository/.tools/bin:$PATH"
    uv_is_usable uv || fail 'uv was installed into .tools but does not run; remove .tools and try again'
}

ensure_cargo() {
    command -v cargo >/dev/null || fail 'cargo is not on PATH; install Rust 1.88 or later (https://rustup.rs)'
    cargo --version >/dev/null || fail 'cargo does not run; where HOME is not yours, set RUSTUP_HOME and CARGO_HOME'
}

# Prints the title, runs the command, prints how long it took; a failing command ends the script with its exit status.
step() {
    local title=$1 started=$SECONDS status
    shift
    printf '\n==> %s\n' "$title"
    # Not `"$@" || …`: that would switch errexit off inside functions.
    set +e
    (set -e; "$@")
    status=$?
    set -e
    if [ "$status" -ne 0 ]; then
        printf '<== %s: FAILED after %d s (exit status %d): %s\n' "$title" "$((SECONDS - started))" "$status" "$*" >&2
        exit "$status"
    fi
    printf '<== %s: %d s\n' "$title" "$((SECONDS - started))"
}
