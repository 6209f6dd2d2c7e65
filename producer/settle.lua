-- All messages of a run are pushed: it runs, or it is complete already. A paused or cancelled run stays so.
-- KEYS state counts, then keys that expire with the run; ARGV finished_ttl_s
-- Returns the status.
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'enqueueing' and status ~= 'running' then return status or '' end
local batches = tonumber(redis.call('HGET', KEYS[1], 'batches') or '-1')
if tonumber(redis.call('HGET', KEYS[2], 'batches') or '0') >= batches then
  redis.call('HSET', KEYS[1], 'status', 'complete', 'finished_at', redis.call('TIME')[1])
  for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[1]) end
  return 'complete'
end
redis.call('HSET', KEYS[1], 'status', 'running')
return 'running'
