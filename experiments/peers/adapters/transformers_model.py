"""Transformers on a CPU: eager or sdpa attention, bfloat16 weights, or nf4 through bitsandbytes."""
import common


def packages():
    return common.versions("torch", "transformers")


def load(task):
    import torch
    import transformers

    torch.set_num_threads(task["threads"])
    transformers.utils.logging.set_verbosity_error()
    arguments = {"dtype": torch.bfloat16, "attn_implementation": task["axes"]["attention"]}
    if task["axes"].get("weights") == "nf4":
        found = common.versions("bitsandbytes")
        if "missing" in found:
            raise common.Unsupported(found["missing"])
        arguments["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        arguments["device_map"] = "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(task["model"]["hf"], **arguments)
    return torch, model.eval()


def measure(task):
    start = common.now()
    torch, model = load(task)
    load_s = common.now() - start
    state = {}

    def run(ids, **arguments):
        with torch.inference_mode():
            out = model(ids, use_cache=True, logits_to_keep=1, **arguments)
            state["cache"] = out.past_key_values
            return out.logits[:, -1].argmax(-1).tolist()

    def prefill(prompts):
        state.pop("cache", None)
        return run(torch.tensor(prompts))

    def step(tokens):
        return run(torch.tensor(tokens)[:, None], past_key_values=state["cache"])

    effective = {"attention": model.config._attn_implementation,
                 "dtype": str(model.dtype), "torch_threads": torch.get_num_threads()}
    return common.measure_model(task, prefill, step, effective, load_s)


if __name__ == "__main__":
    common.main(packages, measure)
