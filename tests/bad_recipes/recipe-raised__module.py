from specforge.nodes import Target

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
