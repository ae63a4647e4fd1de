#!/usr/bin/env bash
# Ten minutes on one GPU: the tests marked `gpu`, CUDA logits against the CPU's, rates against the
# bandwidth floor, and the five-step chain; one table at the end, and the same as JSON with $OUT set.
#
#   benchmarks/gpu_check.sh [WHEELS] [arguments of gpu_check.py: --device cpu --shape tiny]
#
# The machine needs Python 3.12, torch 2.11 or newer, triton, transformers and safetensors, and no
# network. What phloem needs beside them is carried as wheels in WHEELS (default: build/gpu-wheels),
# which `make gpu-wheels` fills: pure-Python, abi3 and cp312 ones of
#   elasticsearch elastic-transport fastapi starlette annotated-doc typing-inspection greenlet httpx
#   httpcore h11 anyio sniffio interegular jinja2 markupsafe jmespath llguidance outlines
#   outlines-core jsonpath-ng jsonschema referencing rpds-py attrs cloudpickle diskcache genson
#   opentelemetry-api importlib-metadata zipp prometheus-client pydantic pydantic-core
#   pydantic-settings python-dotenv annotated-types rich markdown-it-py mdurl pygments sqlalchemy
#   structlog tantivy typer shellingham click uvicorn uvloop regex pytest pytest-asyncio pluggy
#   iniconfig idna certifi typing-extensions urllib3 python-dateutil
#   six
# Nothing is installed: they are unpacked into a temporary folder that stands first on the path.
set -euo pipefail
cd "$(dirname "$0")/.."
wheels=build/gpu-wheels
if [ $# -gt 0 ] && [ -d "$1" ]; then wheels=$1; shift; fi
python=${PYTHON:-$(command -v python3.12 || command -v python3)}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if [ -d "$wheels" ]; then
    for wheel in "$wheels"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$site"
    done
fi
for room in grammar retrieval programs runtime server; do  # a copy may have lost the links
    [ -e "src/phloem/$room" ] || ln -s "../../$room" "src/phloem/$room"
done
export PYTHONPATH="$PWD/src:$PWD:$site${PYTHONPATH:+:$PYTHONPATH}"
export TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=1
exec "$python" benchmarks/gpu_check.py "$@"
