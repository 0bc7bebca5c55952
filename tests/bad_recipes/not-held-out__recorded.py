from specforge.dsl import Capture, Eagle3, Evaluate, Recipe, Recorded, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Recorded("recordings/tiny"), target)
heldout = Recorded("./recordings/tiny")
recipe = Recipe(name="bad", train=Train(features, Eagle3(ttt_length=4)), evaluate=[Evaluate(heldout)])
