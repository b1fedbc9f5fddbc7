"""A Ray cluster of this machine that serves ``judge:score`` of its folder, until its input ends.

It prints ``address HOST:PORT`` once the function can be called.
"""

import sys


def main() -> None:
    import ray
    from ray import serve

    from rollart.backends.rewards.ray_serve_app import Arguments, application

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"location": "NoServer"})
        arguments = Arguments(
            function="judge:score", version="v1", max_replicas=2, num_cpus=0.1, downscale_s=60.0
        )
        serve.run(application(arguments), name="judge", route_prefix=None)
        sys.stdout.write(f"address {ray.get_runtime_context().gcs_address}\n")
        sys.stdout.flush()
        sys.stdin.read()
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
