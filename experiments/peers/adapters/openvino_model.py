"""OpenVINO GenAI: its LLM pipeline on a CPU, weights from the f16 GGUF file, KV kept in f16."""
import common


def packages():
    return common.versions("openvino-genai", "openvino", "numpy")


def measure(task):
    import numpy
    import openvino
    import openvino_genai

    start = common.now()
    # Its prefix cache is on unless told otherwise: a prompt seen in the warm-up would cost nothing.
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = max(256, task["batch"] * task["prompt"])
    # Without KV_CACHE_PRECISION it keeps K and V in 8 bits, which no other system does here.
    pipeline = openvino_genai.LLMPipeline(
        task["model"]["gguf_f16"], "CPU", KV_CACHE_PRECISION="f16", ATTENTION_BACKEND="PA",
        scheduler_config=scheduler, INFERENCE_NUM_THREADS=task["threads"])
    load_s = common.now() - start
    config = openvino_genai.GenerationConfig()
    config.ignore_eos, config.do_sample = True, False

    def generate(prompts, n_tokens):
        config.max_new_tokens = n_tokens
        ids = openvino.Tensor(numpy.array(prompts, dtype=numpy.int64))
        result = pipeline.generate(ids, config)
        raw = result.perf_metrics.raw_metrics
        steps = [1e-6 * t for t in list(raw.m_durations)[-(n_tokens - 1):]] if n_tokens > 1 else []
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
        # The times are OpenVINO's own: they must account for what the clock says.
        if not 0.8 * wall <= first + sum(steps) <= 1.05 * wall:
            return {"outcome": "mismatch", "reason": "its own times sum to %.4g s of %.4g s" %
                    (first + sum(steps), wall)}
        if len(steps) != task["output"] - 1:
            raise RuntimeError("%d times for %d tokens" % (len(steps), task["output"] - 1))
        passes.append((first, steps))
        spent += first + sum(steps)
    effective = {"weights": "f16", "kv_dtype": "f16", "attention": "paged", "prefix_cache": False,
                 "compute_dtype": openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT")
                 .to_string()}
    return common.model_answer(task, passes, [list(sequence) for sequence in ids[:4]], effective,
                               load_s, warmup_s)


if __name__ == "__main__":
    common.main(packages, measure)
