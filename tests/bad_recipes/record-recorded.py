from specforge.dsl import Capture, Eagle3, Recipe, Record, Recorded, Target

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
features = Capture(Recorded("recordings/tiny"), target, Eagle3.policy(target))
recipe = Recipe(name="bad", record=Record(features, "features"))
