-- wrk's part: each request sends the next of the bodies in the file named by BENCH_BODIES; the result is JSON.
local requests, position = {}, 0

function init(arguments)
   local headers = { ["Content-Type"] = "application/json" }
   local token = os.getenv("BENCH_TOKEN")
   if token ~= "" then headers["Authorization"] = "Bearer " .. token end
   for body in io.lines(os.getenv("BENCH_BODIES")) do
      requests[#requests + 1] = wrk.format("POST", "/predict", headers, body)
   end
end

function request()
   position = position % #requests + 1
   return requests[position]
end

function done(summary, latency, all)
   local errors = summary.errors
   io.write(string.format(
      '\n{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "errors": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
