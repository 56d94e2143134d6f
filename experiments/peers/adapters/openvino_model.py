"""OpenVINO GenAI: its LLM pipeline on a CPU, weights from the f16 GGUF file, KV kept in f16."""
import common


def packages():
    return common.versions("openvino-genai", "openvino", "numpy")


def measure(task):
    import numpy
    import openvino
    import openvino_genai

    start = common.now()
    # Without KV_CACHE_PRECISION it keeps K and V in 8 bits, which no other system does here.
    settings = {"KV_CACHE_PRECISION": "f16", "INFERENCE_NUM_THREADS": task["threads"]}
    backend = "PA" if task["batch"] == 1 else "SDPA"  # PA takes no batch of ids
    if backend == "PA":
        # Its prefix cache is on unless told otherwise: a prompt of the warm-up would cost nothing.
        settings["scheduler_config"] = openvino_genai.SchedulerConfig()
        settings["scheduler_config"].enable_prefix_caching = False
        settings["scheduler_config"].max_num_batched_tokens = max(256, task["prompt"])
    pipeline = openvino_genai.LLMPipeline(
        task["model"]["gguf_f16"], "CPU", ATTENTION_BACKEND=backend, **settings)
    load_s = common.now() - start
    config = openvino_genai.GenerationConfig()
    config.ignore_eos, config.do_sample = True, False

    def generate(prompts, n_tokens):
        config.max_new_tokens = n_tokens
        ids = openvino.Tensor(numpy.array(prompts, dtype=numpy.int64))
        result = pipeline.generate(ids, config)
        raw = result.perf_metrics.raw_metrics
        # A duration is a token's share of its step: the step took as many as there are sequences.
        steps = [1e-6 * len(prompts) * t for t in list(raw.m_durations)[len(raw.m_durations) -
                                                                       (n_tokens - 1):]]
        return 1e-6 * raw.m_times_to_first_token[0], steps, result.tokens

    start = common.now()
    if task["output"] == 1:
        generate(task["prompts"], 1)
    else:
        generate([ids[:16] for ids in task["prompts"]], 5)
    warmup_s = common.now() - start
    passes, spent, ids = [], 0.0, None
    while spent < task["min_s"]:
        start = common.now()
        first, steps, ids = generate(task["prompts"], task["output"])
        wall = common.now() - start
        # The times are OpenVINO's own: decode, and all of it, must be what the clock says.
        decode, clock = sum(steps), wall - first
        if not (0.9 * wall <= first + decode <= 1.01 * wall and
                0.8 * clock <= decode + 0.05 and decode <= 1.05 * clock + 0.05):
            return {"outcome": "mismatch", "reason": "its own times: %.4g s to the first token, "
                    "%.4g s of decode; the clock: %.4g s in all" % (first, decode, wall)}
        if len(steps) != task["output"] - 1:
            raise RuntimeError("%d times for %d tokens" % (len(steps), task["output"] - 1))
        passes.append((first, steps))
        spent += first + sum(steps)
    effective = {"weights": "f16", "kv_dtype": "f16", "attention": backend, "prefix_cache": False,
                 "compute_dtype": openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
                 .to_string()}
    return common.model_answer(task, passes, [list(sequence) for sequence in ids[:4]], effective,
                               load_s, warmup_s)


if __name__ == "__main__":
    common.main(packages, measure)
