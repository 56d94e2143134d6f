"""llama.cpp through the C API that llama-cpp-python binds: one context, sequences side by side."""
import ctypes

import common


def packages():
    found = common.versions("llama-cpp-python", "numpy")
    if "missing" in found:
        return found
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        return {"missing": str(error)}
    return {"versions": {"llama-cpp-python": llama_cpp.__version__}}


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def quiet(level, text, data):
    pass


class Model:
    """Prompts of all sequences into the cache, then one token of each at a time."""

    def __init__(self, task):
        import llama_cpp
        import numpy

        self.api, self.numpy, self.batch_size = llama_cpp, numpy, 2048
        llama_cpp.llama_log_set(quiet, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(
            task["model"]["gguf_bf16"].encode(), model_params)
        if not self.model:
            raise RuntimeError("llama.cpp did not load " + task["model"]["gguf_bf16"])
        params = llama_cpp.llama_context_default_params()
        each = -(-(task["prompt"] + task["output"]) // 256) * 256
        params.n_ctx, params.n_seq_max = task["batch"] * each, task["batch"]
        params.n_batch = self.batch_size  # logical; the micro-batch stays llama.cpp's own 512
        params.n_threads = params.n_threads_batch = task["threads"]
        flash = task["axes"]["attention"] == "flash"
        params.flash_attn_type = (llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash
                                  else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED)
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp made no context")
        self.batch = llama_cpp.llama_batch_init(self.batch_size, 0, 1)
        self.n_vocab = task["model"]["vocab_size"]
        self.position = 0

    def decode(self, entries):
        """entries: (token, position, sequence, wants logits); at most batch_size of them. Returns
        the likeliest next ids of those that want logits."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if self.api.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        ids = []
        for i, entry in enumerate(entries):
            if entry[3]:
                logits = self.api.llama_get_logits_ith(self.context, i)
                row = self.numpy.ctypeslib.as_array(logits, shape=(self.n_vocab,))
                ids.append(int(row.argmax()))
        return ids

    def prefill(self, prompts):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)
        entries = [(token, i, sequence, i == len(prompt) - 1)
                   for sequence, prompt in enumerate(prompts) for i, token in enumerate(prompt)]
        self.position, ids = len(prompts[0]), []
        for start in range(0, len(entries), self.batch_size):
            ids += self.decode(entries[start:start + self.batch_size])
        return ids

    def step(self, tokens):
        self.position += 1
        return self.decode([(token, self.position - 1, sequence, True)
                            for sequence, token in enumerate(tokens)])


def measure(task):
    start = common.now()
    model = Model(task)
    load_s = common.now() - start
    effective = {"attention": task["axes"]["attention"], "kv_dtype": "f16", "weights": "bf16",
                 "system_info": model.api.llama_print_system_info().decode()}
    return common.measure_model(task, model.prefill, model.step, effective, load_s)


if __name__ == "__main__":
    common.main(packages, measure)
