# Sourced by build-docs and serve-docs: the parts of a documentation build.
# shellcheck shell=bash

# The distributions share the package zkdv; the reference reads one tree, as it is when they are installed.
stage_python_sources() {
    rm -rf .docs/src
    mkdir -p .docs/src
    local package
    for package in packages/*/src; do
        cp -R "$package/." .docs/src/
    done
    find .docs/src -name __pycache__ -prune -exec rm -rf {} +
}

# The commands and their options, as the program itself states them, for docs/reference/command-line.md.
describe_command_line() {
    mkdir -p .docs
    uv run --no-sync python -m typer zkdv.cli._application utils docs --name zkdv |
        # Its title stands on the page already.
        sed '1{/^# /d}' >.docs/command-line.md
}

build_rustdoc() {
    # Crates that are only FFI have no documentation of their own (`doc = false`).
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --workspace --no-deps
}

# `--strict` turns zensical's warnings into errors; those of the docstring parser are only printed, so they are read here.
build_site() {
    local log=.docs/build.log status=0
    rm -rf site
    NO_COLOR=1 uv run --no-sync zensical build --clean --strict >"$log" 2>&1 || status=$?
    # A strict failure ends in a traceback of the tool, which says nothing.
    sed -e '/^Traceback/,/^RuntimeError/d' "$log"
    if [ "$status" -ne 0 ] || grep -qE '^(griffe|mkdocstrings|WARNING)' "$log"; then
        printf 'error: the documentation has warnings (above)\n' >&2
        return 1
    fi
}

embed_rustdoc() {
    rm -rf site/reference/rust
    mkdir -p site/reference
    cp -R "${CARGO_TARGET_DIR:-target}/doc" site/reference/rust
}
