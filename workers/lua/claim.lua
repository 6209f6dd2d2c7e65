-- Give a batch to a worker for the length of a lease, unless it is done, held, or the run takes no work.
-- KEYS state done lease owner attempts checkpoints pushed parked; ARGV batch bit token lease_ms
-- Returns {outcome, attempt or owner, checkpoints…}. Safe to repeat with the same token.
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return {'unknown', ''} end
if redis.call('GETBIT', KEYS[2], ARGV[2]) == 1 then return {'done', ''} end
if status == 'paused' or status == 'cancelled' then
  redis.call('SETBIT', KEYS[7], ARGV[2], 0)
  return {status, ''}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner = redis.call('HGET', KEYS[4], ARGV[1])
if owner and owner ~= ARGV[3] then
  local ends = redis.call('ZSCORE', KEYS[3], ARGV[1])
  if ends and tonumber(ends) > now then return {'held', owner} end
end
local attempt
if owner == ARGV[3] then
  attempt = tonumber(redis.call('HGET', KEYS[5], ARGV[1]) or '1')
else
  attempt = redis.call('HINCRBY', KEYS[5], ARGV[1], 1)
end
redis.call('HSET', KEYS[4], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[3], now + tonumber(ARGV[4]), ARGV[1])
redis.call('SETBIT', KEYS[7], ARGV[2], 1)
redis.call('HDEL', KEYS[8], ARGV[1])
local answer = {'claimed', tostring(attempt)}
local kept = redis.call('HGETALL', KEYS[6])
for i = 1, #kept, 2 do
  if not string.find(kept[i], ':', 1, true) then
    answer[#answer + 1] = kept[i]
    answer[#answer + 1] = kept[i + 1]
  end
end
return answer
