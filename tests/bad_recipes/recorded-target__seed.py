from specforge.dsl import Capture, Eagle3, Recipe, Recorded, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Recorded("recordings/tiny"), target)
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)), seed=7)
