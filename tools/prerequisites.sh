#!/bin/sh
# Finds what lastword needs and cannot bring along: a Python and a Java.
#
#   sh tools/prerequisites.sh python    prints the Python to make the environment with (3.10 or newer)
#   sh tools/prerequisites.sh java      prints the JAVA_HOME to run with (Java 17 or 21)
#   sh tools/prerequisites.sh go        prints the go to build an S3 server with, for `make s3` alone
#   sh tools/prerequisites.sh npm       prints the npm to install Azurite with, for `make azure` alone
#   sh tools/prerequisites.sh usable .venv/bin/python    whether this one is 3.10 or newer, by its exit code
#
# When there is none: one line on stderr that says what to install, exit code 1.
set -u

usable_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10; do
        if usable_python "$candidate" && "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            # The interpreter itself, not a shim that may choose another one next time.
            "$candidate" -c 'import sys; print(sys.executable)'
            return 0
        fi
    done
    echo 'lastword needs Python 3.10 or newer with venv: install python3 and python3-venv, or set PYTHON to one' >&2
    return 1
}

# Prints java.home when the given java is a 17 or 21.
home_of_java() {
    "$1" -XshowSettings:properties -version 2>&1 | awk -F ' = ' '
        $1 ~ /^ *java\.specification\.version$/ { version = $2 }
        $1 ~ /^ *java\.home$/ { home = $2 }
        END { if (version == "17" || version == "21") print home; else exit 1 }'
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ] && home_of_java "$JAVA_HOME/bin/java" 2>/dev/null; then return 0; fi
    if command -v java >/dev/null 2>&1 && home_of_java java 2>/dev/null; then return 0; fi
    if [ -x /usr/libexec/java_home ]; then
        for version in 17 21; do
            home=$(/usr/libexec/java_home -v "$version" 2>/dev/null) && home_of_java "$home/bin/java" 2>/dev/null && return 0
        done
    fi
    for home in /usr/lib/jvm/* /opt/java/* /opt/jdk* /opt/homebrew/opt/openjdk@* /usr/local/opt/openjdk@* \
        "${HOME:-}"/.sdkman/candidates/java/*; do
        if [ -x "$home/bin/java" ] && home_of_java "$home/bin/java" 2>/dev/null; then return 0; fi
    done
    echo 'lastword needs Java 17 or 21 (Spark 4 runs on no other): install one, for example openjdk-17-jre-headless, or set JAVA_HOME to one' >&2
    return 1
}

find_go() {
    for candidate in go /usr/local/go/bin/go /usr/lib/go/bin/go /opt/homebrew/bin/go; do
        if command -v "$candidate" >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    echo 'make s3 needs Go, to build an S3 server: install golang, or leave these tests out (make test needs none)' >&2
    return 1
}

find_npm() {
    command -v npm || {
        echo 'make azure needs npm (Node.js 20 or newer), to install Azurite: install it, or leave these tests out (make test needs none)' >&2
        return 1
    }
}

case "${1:-}" in
    python) find_python ;;
    java) find_java ;;
    go) find_go ;;
    npm) find_npm ;;
    usable) usable_python "${2:-}" ;;
    *)
        echo "usage: sh tools/prerequisites.sh python|java|go|npm|usable PYTHON" >&2
        exit 2
        ;;
esac
