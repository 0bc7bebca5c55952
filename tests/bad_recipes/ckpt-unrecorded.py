from specforge.dsl import Capture, Ckpt, Eagle3, Recipe, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Ckpt("recordings/elsewhere", max_length=64), target)
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)))
